// The field for a message, with files that are attached, pasted or dropped.

import { session, upload } from "../core/api.js";
import { Icon } from "../parts/icons.js";
import { bytes, html, LacksScope } from "../parts/parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";

const MOST_FILES = 20;

/** A key that may not chat has no field. */
export function Composer(props) {
  return session.may("chat") ? html`<${MessageField} ...${props} />` : html`<${LacksScope} scope="chat" />`;
}

function MessageField({ onSend, hint = "", filesAllowed = true }) {
  const field = useRef(null);
  const [text, setText] = useState("");
  const files = useUploads();
  const [over, setOver] = useState(false);
  useEffect(() => {
    // On touch screens the keyboard would cover the page, so the field gets no focus by itself.
    if (matchMedia("(hover: hover)").matches) field.current.focus({ preventScroll: true });
  }, []);
  const isEmpty = text.trim() === "" && files.ready.length === 0;
  const send = () => {
    if (isEmpty || files.busy) return;
    onSend({ text, attachments: files.ready });
    setText("");
    files.clear();
  };
  const pressed = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const submitted = (event) => {
    event.preventDefault();
    send();
  };
  const take = (event, list) => {
    if (!filesAllowed || !list || list.length === 0) return;
    event.preventDefault();
    files.add([...list]);
  };
  const dropped = (event) => {
    setOver(false);
    take(event, event.dataTransfer?.files);
  };
  const dragged = (event) => {
    event.preventDefault();
    setOver(true);
  };
  return html`<form class=${`composer ${over ? "over" : ""}`} onSubmit=${submitted} onDragOver=${dragged} onDragLeave=${() => setOver(false)} onDrop=${dropped}>
    ${hint && html`<p class="hint">${hint}</p>`}
    <${Uploads} files=${files} />
    <div class="write">
      ${filesAllowed && html`<${Attach} onFiles=${files.add} />`}
      <label class="unseen" for="say">Message</label>
      <textarea id="say" ref=${field} rows=${Math.min(8, text.split("\n", 8).length)} value=${text} placeholder="Message" onPaste=${(event) => take(event, event.clipboardData?.files)}
        aria-describedby="say-hint" onInput=${(event) => setText(event.target.value)} onKeyDown=${pressed} />
      <button class="primary" aria-disabled=${isEmpty || files.busy}>Send</button>
    </div>
    <p id="say-hint" class="unseen">Enter sends the message, Shift+Enter starts a new line.</p>
  </form>`;
}

function Attach({ onFiles }) {
  const input = useRef(null);
  const picked = () => {
    onFiles([...input.current.files]);
    input.current.value = "";
  };
  return html`<input ref=${input} type="file" multiple class="unseen" tabIndex="-1" aria-label="Files" onChange=${picked} />
    <button type="button" class="attach" aria-label="Attach files" title="Attach files" onClick=${() => input.current.click()}><${Icon} name="clip" /></button>`;
}

/** The files of a message that is being written; each is stored at once: {all, ready, busy, add, drop, clear}. */
function useUploads() {
  const [all, setAll] = useState([]);
  const change = (key, fields) => setAll((known) => known.map((one) => (one.key === key ? { ...one, ...fields } : one)));
  const add = (files) => {
    const fresh = files.slice(0, MOST_FILES - all.length).map((file) => ({
      key: crypto.randomUUID(), file, preview: file.type.startsWith("image/") ? URL.createObjectURL(file) : null,
    }));
    setAll((known) => [...known, ...fresh]);
    for (const { key, file } of fresh) {
      upload(`files?${new URLSearchParams({ name: file.name || "pasted" })}`, file, { method: "POST" }).then(
        ({ name, type, url }) => change(key, { attachment: { name, type, url } }),
        (problem) => change(key, { problem: problem.message }),
      );
    }
  };
  const forget = (gone) => gone.forEach(({ preview }) => preview && URL.revokeObjectURL(preview));
  const drop = (key) => {
    forget(all.filter((one) => one.key === key));
    setAll((known) => known.filter((one) => one.key !== key));
  };
  const clear = () => {
    forget(all);
    setAll([]);
  };
  const ready = all.map(({ attachment }) => attachment).filter(Boolean);
  return { all, ready, busy: all.some(({ attachment, problem }) => !attachment && !problem), add, drop, clear };
}

function Uploads({ files }) {
  if (files.all.length === 0) return null;
  return html`<ul class="uploads" aria-label="Attached files">${files.all.map(({ key, file, preview, attachment, problem }) => html`<li key=${key} data-stored=${Boolean(attachment)}>
    ${preview ? html`<img src=${preview} alt="" />` : html`<${Icon} name="file" />`}
    <span class="clip">${file.name || "pasted"}</span> <span class="quiet">${problem ?? (attachment ? bytes(file.size) : "storing…")}</span>
    <button type="button" aria-label=${`Remove ${file.name}`} onClick=${() => files.drop(key)}>×</button></li>`)}</ul>`;
}
