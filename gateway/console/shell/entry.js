// The first visit: the form that asks for a key, and the sign-in with an identity provider.

import { call, Problem, session } from "../core/api.js";
import { Mark } from "../parts/icons.js";
import { html } from "../parts/parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";

export function KeyForm({ said, onEnter }) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState(said);
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState(null);
  useEffect(() => {
    call("GET", "console/sign-in", { key: null }).then(({ oidc }) => setProvider(oidc), () => {});
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    const refusal = await tryKey(key.trim());
    setBusy(false);
    if (refusal) setProblem(refusal);
    else onEnter(key.trim());
  };
  return html`<main class="gate"><form class="stack" onSubmit=${submit} autoComplete="off">
    <p class="brand"><${Mark} /> Dovecote</p>
    <h1>Open the console</h1>
    ${provider && html`<p class="row"><a class="button primary" href=${provider.url}>Sign in with ${provider.label}</a></p><p class="quiet">or with an API key:</p>`}
    <label>API key <input type="password" name="key" required autoFocus autoComplete="off" spellCheck=${false} value=${key}
      aria-describedby="key-hint" onInput=${(event) => setKey(event.target.value)} /></label>
    <p id="key-hint" class="quiet">The gateway wrote its first key to the file <code>key</code> in its data directory. This page keeps it until you leave or close its tabs.</p>
    <p class="row"><button class="primary" aria-disabled=${busy} disabled=${key.trim() === ""}>Enter</button></p>
    ${problem && html`<p class="trouble" role="alert">${problem}</p>`}
  </form></main>`;
}

/** Why a key is refused, or null if it is accepted; stores the id under which its messages are shown. */
export async function tryKey(key) {
  try {
    const account = await call("GET", "accounts/me", { key });
    session.isKnownAs(account.key);
    session.hasScopes(account.scopes);
    return null;
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status === 401) return "The gateway refused this key.";
    return problem.status === 403 ? null : problem.message;
  }
}

const OPENS = /^#\/open\/([\w-]{1,100})$/;

/** The one-time code in the address, which is removed from the address and the history; null without one. */
export function takeCode() {
  const code = OPENS.exec(location.hash)?.[1] ?? null;
  if (code !== null) history.replaceState(null, "", "#/home");
  return code;
}

const COMES_BACK = /^#\/(?:signed-in|sign-in\/([a-z-]{1,20}))$/;
const FAILURES = {
  denied: "The identity provider did not sign you in.",
  expired: "This sign-in took too long or was begun in another browser. Sign in again.",
  "no-access": "You are signed in at the identity provider, but you have no access to this gateway. Ask its operator.",
  refused: "The gateway refused the identity provider's answer. The gateway's log has the reason.",
  unavailable: "The identity provider cannot be reached. Try again later.",
};

/** How a sign-in came back: {said} after a failure, else null; {signedIn} if a key waits. Removed from the address. */
export function takeSignIn() {
  const found = COMES_BACK.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", "#/home");
  return found[1] === undefined ? { signedIn: true } : { said: FAILURES[found[1]] ?? FAILURES.refused };
}

/** Fetch the key of the person who signed in; throws a Problem if it was fetched before or is too old. */
export async function openSignedIn() {
  const { key } = await call("POST", "console/oidc/session", { key: null, credentials: "same-origin" });
  const refusal = await tryKey(key);
  if (refusal) throw new Problem({ title: refusal });
  return key;
}

/** End the key of a person who signed in; returns where the provider's session ends, or null. */
export async function endSignIn() {
  try {
    return (await call("POST", "console/leave")).url;
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    return null;
  }
}

/** Exchange a one-time code for a key; throws a Problem if it was used or is too old. */
export async function openWith(code) {
  const { key } = await call("POST", "console/entry", { body: { code }, key: null });
  const refusal = await tryKey(key);
  if (refusal) throw new Problem({ title: refusal });
  return key;
}
