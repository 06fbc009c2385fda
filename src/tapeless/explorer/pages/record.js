// A row of a record: where in it stands what was measured of which call.

const LEAD = 5;
const STATISTICS = ["size", "zeros", "largest", "not finite"];
const JOINING = ["size", "highway", "cosine"];

export const stepOf = (row) => row[0] + row[1] * 2 ** 24;
export const lossOf = (row) => row[2];

// One statistic of one result.
export const measured = (row, result, statistic) =>
  row[LEAD + STATISTICS.length * result + STATISTICS.indexOf(statistic)];
export const statistics = STATISTICS;

// What joins the residual stream, as it was at a row.
export function branchesOf(record, row) {
  const first = LEAD + STATISTICS.length * record.results.length;
  return record.branches.map((each, index) => ({
    ...each,
    ...Object.fromEntries(JOINING.map((name, part) => [name, row[first + JOINING.length * index + part]])),
  }));
}

// What is shown of a call as one: of a backward call every gradient that it hands on to the calls before it (attention
// has three), of any other its first result. `weight`: the fraction of all their elements.
export function shownResults(record, call) {
  const onward = record.onward[call.call];
  const results = onward ?? [record.results.findIndex(([number]) => number === call.call)].filter((at) => at >= 0);
  const elements = results.map((at) => call.results[record.results[at][1]].shape.reduce((a, b) => a * b, 1));
  const all = elements.reduce((a, b) => a + b, 0) || 1;
  return results.map((result, index) => ({ result, weight: elements[index] / all }));
}

// A statistic of several results together.
export function together(row, results, statistic) {
  const values = results.map(({ result }) => measured(row, result, statistic));
  if (statistic === "size") return Math.sqrt(values.reduce((sum, each, at) => sum + results[at].weight * each ** 2, 0));
  if (statistic === "zeros") return values.reduce((sum, each, at) => sum + results[at].weight * each, 0);
  return Math.max(...values);
}
