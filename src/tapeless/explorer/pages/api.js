// The server, asked with the token from the address's fragment, which no server sees, in a header.

const [token = ""] = location.hash.slice(1).split("/");
export const sealed = false; // a page that was saved has no server: sealed.js
export const lead = `${token}/`; // of every address within the page

async function ask(path, signal) {
  const answer = await fetch(path, { headers: { "X-Tapeless-Token": token }, cache: "no-store", signal }).catch(() => {
    throw new Error("The server does not answer: does `tapeless explore` still run?"); // the browser's words say less
  });
  if (answer.ok) return answer;
  const said = await answer.text();
  let sentence = said;
  try {
    sentence = JSON.parse(said).error ?? said;
  } catch {
    /* it is plain text */
  }
  throw Object.assign(new Error(sentence.trim()), { status: answer.status, refused: answer.status === 403 });
}

export const json = async (path, signal) => (await ask(path, signal)).json();

// A line of JSON with its length before it, then numbers.
export async function numbers(path, Kind) {
  const buffer = await (await ask(path)).arrayBuffer();
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  return [head, new Kind(buffer, 8 + length)];
}

// Server-sent events, read with fetch because EventSource cannot send a header.
export async function listen(hear, signal) {
  const reader = (await ask("/api/live", signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) hear(JSON.parse(event.slice(6)));
  }
}
