// In place of the server, in a page that was saved as one file: the answers it gave when the page was saved.

const answers = new Map(Object.entries(JSON.parse(document.getElementById("answers").textContent)));
export const sealed = true;
export const lead = "";

function found(path) {
  if (!answers.has(path))
    throw new Error("This page was saved as one file, and this is not in it: `tapeless explore` shows it.");
  return answers.get(path);
}

export const json = async (path) => structuredClone(found(path));

export async function numbers(path, Kind) {
  const { head, data } = found(path),
    bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
  return [head, new Kind(bytes.buffer)];
}

export const listen = () => new Promise(() => {}); // nothing is new
