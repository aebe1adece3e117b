// Workspaces: browse, read, edit and upload the files that agents work on.

import { call, download, list, Problem, session, upload, versionOf } from "../core/api.js";
import { addressOf } from "../core/places.js";
import { Act, Form, Remove, useUnsaved } from "../parts/forms.js";
import { Icon } from "../parts/icons.js";
import { bytes, Empty, html, Moment, Trouble, useAction, usePolled } from "../parts/parts.js";
import { useRef, useState } from "../vendor/hooks.mjs";

const RECORDS = "accounts/me/workspaces";
const LARGEST_TEXT = 512 * 1024;
const MOST_PAGES = 20;
const DRAFTS = new Map(); // path of a file → {text} that is not saved and the version {seen} that it is of, while another place is shown

export function View({ id, rest, query }) {
  if (!id) return html`<${AllWorkspaces} />`;
  const path = rest.filter(Boolean).join("/");
  return html`<${Files} id=${id} path=${path} isFile=${query.get("view") === "file"} key=${`${id}/${path}`} />`;
}

function AllWorkspaces() {
  const { value, problem, refresh } = usePolled(() => list(RECORDS), 0);
  const create = async ({ name }) => {
    await call("POST", RECORDS, { body: { name: name.trim() } });
    await refresh();
  };
  return html`<section class="view narrow">
    <h1>Workspaces</h1>
    <p class="lead">The files that agents read and write.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<${Empty} icon="folder" title="No workspace yet">Add one, and name it in the settings of an agent.</${Empty}>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((one) => html`<li key=${one.id}><a class="rowlink two" href=${addressOf("workspaces", one.id)}><span>${one.name}</span> <span class="quiet"><${Moment} time=${one.created_at} /></span></a></li>`)}</ul>`}
    <${Form} title="Add a workspace" fields=${[{ name: "name", label: "Name", required: true }]} action="Add" onSend=${create} />
  </section>`;
}

function filePath(id, path) {
  return `${RECORDS}/${encodeURIComponent(id)}/files${path ? `/${path.split("/").map(encodeURIComponent).join("/")}` : ""}`;
}

function hashOf(id, path, query) {
  return addressOf("workspaces", [id, ...path.split("/").filter(Boolean)].map(encodeURIComponent).join("/"), query);
}

function Files({ id, path, isFile }) {
  const parent = path.split("/").slice(0, -1).join("/");
  return html`<section class="view narrow">
    <p><a href=${path ? hashOf(id, parent) : "#/workspaces"}>← ${path ? parent || "Workspace" : "All workspaces"}</a></p>
    <h1 class="wrap">${path || "Workspace"}</h1>
    ${isFile ? html`<${OneFile} id=${id} path=${path} parent=${parent} />` : html`<${Folder} id=${id} path=${path} />`}
  </section>`;
}

function Folder({ id, path }) {
  const { value, problem, refresh } = usePolled(() => list(filePath(id, path), MOST_PAGES), 0, [id, path]);
  const entries = [...(value ?? [])].sort((one, other) => one.kind.localeCompare(other.kind) || one.name.localeCompare(other.name));
  const removeAll = async () => {
    await call("DELETE", `${RECORDS}/${encodeURIComponent(id)}`);
    location.hash = "#/workspaces";
  };
  const create = async ({ name }) => {
    const target = [path, ...name.split("/").map((part) => part.trim())].filter(Boolean).join("/");
    await upload(filePath(id, target), new Blob([""]), { isNew: true }).catch((problem) => {
      if (![409, 412].includes(problem.status)) throw problem;
      throw new Problem({ title: "Nothing was changed", errors: [{ pointer: "/name", detail: "is the name of a file or folder that is there already" }] });
    });
    location.hash = hashOf(id, target, { view: "file" });
  };
  return html`<${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<${Empty} icon="folder" title="Empty">Upload a file, or let an agent write one.</${Empty}>`}
    ${entries.length > 0 && html`<ul class="rows">${entries.map((entry) => html`<li key=${entry.path}><a class="rowlink" href=${hashOf(id, entry.path, entry.kind === "directory" ? {} : { view: "file" })}>
      <${Icon} name=${entry.kind === "directory" ? "folder" : "file"} /> <span class="clip">${entry.name}</span> <span class="quiet">${entry.kind === "directory" ? "" : bytes(entry.size)}</span></a></li>`)}</ul>`}
    ${session.may("admin") && html`<${Upload} id=${id} path=${path} refresh=${refresh} />`}
    <${Form} title="New file" fields=${[{ name: "name", label: "File name", required: true, hint: "A name with slashes makes folders." }]} action="Create" onSend=${create} />
    ${!path && session.may("admin") && html`<h2>Remove</h2><p class="row"><${Remove} label="Remove the workspace" sureLabel="Remove it with all files" onRemove=${removeAll} /></p>`}`;
}

function Upload({ id, path, refresh }) {
  const input = useRef(null);
  const [send, { busy, problem }] = useAction(async (files) => {
    for (const file of files) await upload(filePath(id, [path, file.name].filter(Boolean).join("/")), file);
    input.current.value = "";
    await refresh();
  });
  return html`<div class="stack"><label>Upload files <input ref=${input} type="file" multiple disabled=${busy} onChange=${() => send([...input.current.files])} /></label><${Trouble} problem=${problem} /></div>`;
}

function OneFile({ id, path, parent }) {
  const [draft, setDraft] = useState(DRAFTS.get(filePath(id, path)) ?? null);
  const text = draft?.text ?? null;
  const { value, problem, refresh } = usePolled(() => readFile(id, path), 0, [id, path]);
  const isDirty = text !== null && value !== null && text !== value.text;
  useUnsaved(isDirty);
  const edit = (edited, seen = draft === null ? versionOf(value.blob) : draft.seen) => {
    DRAFTS.set(filePath(id, path), { text: edited, seen });
    setDraft({ text: edited, seen });
  };
  const forget = () => {
    DRAFTS.delete(filePath(id, path));
    setDraft(null);
  };
  const save = async () => {
    if (!isDirty) return "Nothing was changed.";
    await upload(filePath(id, path), new Blob([text]), { match: draft.seen ?? undefined }).catch(async (refusal) => {
      if (refusal.status !== 412) throw refusal;
      const now = await readFile(id, path).catch((gone) => (gone.status === 404 ? null : Promise.reject(gone)));
      edit(text, now === null ? null : versionOf(now.blob));
      if (now === null) throw new Problem({ title: "This file was deleted since you read it", detail: "save again to create it again" });
      if (now.text !== text) throw new Problem({ title: "This file was changed since you read it", detail: "save again to replace that, or discard your changes to see it" });
    });
    await refresh();
    forget();
    return "Saved.";
  };
  const discard = async () => {
    await refresh();
    forget();
  };
  const take = async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(value.blob);
    link.download = path.split("/").at(-1);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const remove = async () => {
    await call("DELETE", filePath(id, path));
    forget();
    location.hash = hashOf(id, parent);
  };
  return html`<${Trouble} problem=${problem} retry=${refresh} />
    ${value && value.text === null && html`<p class="quiet">${bytes(value.blob.size)}, not shown: it is no text, or too large.</p>`}
    ${value && value.text !== null && html`<label>Content <textarea class="editor" spellCheck=${false} readOnly=${!session.may("admin")} value=${text ?? value.text} onInput=${(event) => edit(event.target.value)} /></label>`}
    ${value && html`<p class="row">${value.text !== null && html`<${Act} label="Save" primary=${true} needs="admin" onAct=${save} />`}${isDirty && html`<${Act} label="Discard changes" onAct=${discard} />`}<${Act} label="Download" onAct=${take} /><${Remove} label="Delete" sureLabel="Delete the file" onRemove=${remove} /></p>`}`;
}

/** A file's bytes, and its text if it is short and UTF-8. */
async function readFile(id, path) {
  const blob = await download(filePath(id, path));
  if (blob.size > LARGEST_TEXT) return { blob, text: null };
  try {
    return { blob, text: new TextDecoder("utf-8", { fatal: true }).decode(await blob.arrayBuffer()) };
  } catch {
    return { blob, text: null };
  }
}
