// Asks a worker for the colours of code, one block at a time. A block that takes too long stays plain.

const MAX_LENGTH = 20_000;
const LANGUAGE = /^[\w+#.-]{1,30}$/;
const PATIENCE = 300;
const LOAD_PATIENCE = 20_000;
const MOST_FAILURES = 3;
const MOST_KEPT = 200;

/** `open` starts a worker, which sends a message when it is ready and then one for each block. */
export class Highlighter {
  #open;
  #patience;
  #worker = null;
  #failures = 0;
  #last = Promise.resolve();
  #kept = new Map();

  constructor(open, patience = PATIENCE) {
    this.#open = open;
    this.#patience = patience;
  }

  /** The pieces of a text, or null if it stays plain; not asked for once `isWanted` says that nobody waits. */
  async colour(text, info, isWanted = () => true) {
    const language = info.split(/[\s,{:]/, 1)[0].toLowerCase();
    if (text.length > MAX_LENGTH || !LANGUAGE.test(language)) return null;
    const key = `${language}\n${text}`;
    if (this.#kept.has(key)) return this.#kept.get(key);
    const asked = this.#last.then(() => (isWanted() ? this.#ask({ text, language }) : undefined));
    this.#last = asked;
    const pieces = await asked;
    if (pieces === undefined) return null;
    this.#keep(key, pieces);
    return pieces;
  }

  #keep(key, pieces) {
    this.#kept.set(key, pieces);
    if (this.#kept.size > MOST_KEPT) this.#kept.delete(this.#kept.keys().next().value);
  }

  async #ask(block) {
    if (this.#failures >= MOST_FAILURES) return null;
    this.#worker ??= this.#start();
    if (this.#worker === null) return null;
    if (!this.#worker.isReady && !(await this.#answer(LOAD_PATIENCE)).isThere) {
      this.#failures += 1;
      return undefined;
    }
    this.#worker.isReady = true;
    const answer = this.#answer(this.#patience);
    this.#worker.postMessage(block);
    return (await answer).data ?? null;
  }

  #start() {
    try {
      return Object.assign(this.#open(), { isReady: false });
    } catch {
      this.#failures = MOST_FAILURES; // no workers here
      return null;
    }
  }

  /** The worker's next message: {isThere, data}. A worker that sends none in time is ended. */
  #answer(patience) {
    const worker = this.#worker;
    return new Promise((resolve) => {
      const end = () => {
        worker.terminate();
        this.#worker = null;
        resolve({ isThere: false });
      };
      const timer = setTimeout(end, patience);
      worker.onmessage = ({ data }) => {
        clearTimeout(timer);
        resolve({ isThere: true, data });
      };
      worker.onerror = () => {
        clearTimeout(timer);
        end();
      };
    });
  }
}

const WORKER = new URL("./highlight_worker.js", import.meta.url).href;
let policy = null;

/** The page's only use of an address as a script: browsers with trusted types demand that a policy names it. */
function openWorker() {
  policy ??= globalThis.trustedTypes?.createPolicy("dovecote-worker", { createScriptURL: () => WORKER }) ?? { createScriptURL: () => WORKER };
  return new Worker(policy.createScriptURL(""), { type: "module" });
}

export const highlighter = new Highlighter(openWorker);
