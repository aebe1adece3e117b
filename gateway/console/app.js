// The page: asks for the key, keeps the connection open, and shows the place in the address.

import { askOtherTabs, call, endSession, onRefused, session, shareSession } from "./core/api.js";
import { beginReading, showTheme } from "./core/choices.js";
import { Live } from "./core/live.js";
import { placeIn } from "./core/places.js";
import { focusPage } from "./parts/forms.js";
import { html, LacksScope, Trouble } from "./parts/parts.js";
import { endSignIn, KeyForm, openSignedIn, openWith, takeCode, takeSignIn, tryKey } from "./shell/entry.js";
import { Navigation } from "./shell/navigation.js";
import { useEffect, useMemo, useReducer, useState } from "./vendor/hooks.mjs";
import { render } from "./vendor/preact.mjs";

const REFUSED = "The key is no longer accepted.";

let leave = () => {};

function Console() {
  const [key, setKey] = useState(session.key());
  const [said, setSaid] = useState("");
  leave = (reason) => {
    session.forget();
    setSaid(reason);
    setKey(null);
  };
  onRefused(() => leave(REFUSED));
  const enter = (accepted) => {
    session.keep(accepted);
    setSaid("");
    setKey(accepted);
  };
  useEffect(() => {
    const code = takeCode();
    if (code !== null && session.key() === null) openWith(code).then(enter, (problem) => setSaid(problem.message));
    const back = takeSignIn();
    if (back?.said) setSaid(back.said);
    if (back?.signedIn) openSignedIn().then(enter, (problem) => setSaid(problem.message));
    shareSession(() => leave("You left the console in another tab."));
    askOtherTabs().then(async (shared) => shared !== null && session.key() === null && (await tryKey(shared)) === null && enter(shared));
  }, []);
  return key === null ? html`<${KeyForm} said=${said} onEnter=${enter} key=${said} />` : html`<${Shell} key=${key} />`;
}

function Shell() {
  const [, draw] = useReducer((count) => count + 1, 0);
  const live = useMemo(() => new Live(() => draw(), () => leave(REFUSED)), []);
  useEffect(() => {
    const hurry = () => document.hidden || live.socket.hurry();
    addEventListener("hashchange", draw);
    addEventListener("online", hurry);
    document.addEventListener("visibilitychange", hurry);
    live.start();
    call("GET", "accounts/me").then(({ scopes }) => session.hasScopes(scopes), () => {}).finally(draw);
    return () => {
      removeEventListener("hashchange", draw);
      removeEventListener("online", hurry);
      document.removeEventListener("visibilitychange", hurry);
      live.stop();
    };
  }, [live]);
  const { place, ...where } = placeIn(location.hash);
  useEffect(() => {
    const waiting = live.pending?.length > 0 ? `(${live.pending.length}) ` : "";
    document.title = `${waiting}${place.title} · Dovecote`;
  }, [place, live.pending?.length]);
  useEffect(focusPage, [location.hash]); // the link that was followed may be gone
  const end = async () => {
    const ended = endSignIn();
    endSession();
    leave("");
    const elsewhere = await ended;
    if (elsewhere !== null) location.assign(elsewhere);
  };
  return html`<${Navigation} place=${place} address=${location.hash} live=${live} onLeave=${end} />
    <main tabIndex="-1"><${ReadOnly} place=${place} /><${Place} place=${place} where=${where} live=${live} key=${place.name} /></main>`;
}

/** Says that the key cannot change what a place shows. */
function ReadOnly({ place }) {
  if (place.needs === undefined || session.may(place.needs)) return null;
  return html`<${LacksScope} scope=${place.needs} />`;
}

/** Fetches the module of a place and shows it. */
function Place({ place, where, live }) {
  const [{ View, problem }, show] = useState({});
  const fetchView = () => place.load().then((module) => show({ View: module.View }), (error) => show({ problem: error }));
  useEffect(() => {
    fetchView();
  }, []);
  if (problem) return html`<div class="view"><${Trouble} problem=${problem} retry=${() => location.reload()} /></div>`;
  return View ? html`<${View} ...${where} live=${live} />` : null;
}

showTheme();
beginReading(new Date().toISOString());
const page = document.getElementById("page");
page.replaceChildren();
render(html`<${Console} />`, page);
