// Background jobs: all of them with their states, one with its live log and a stop button.

import { call, session } from "../core/api.js";
import { Badge, Files, html, Moment, Output, span, Trouble, useAction, useGrowing, usePolled } from "../parts/parts.js";

const LIST_EVERY = 3000;
const LOG_EVERY = 1000;

export function View({ id }) {
  return id ? html`<${Job} id=${id} key=${id} />` : html`<${AllJobs} />`;
}

function AllJobs() {
  const { items: value, more, busy, problem, refresh } = useGrowing("jobs", LIST_EVERY);
  return html`<section class="view">
    <h1>Jobs</h1>
    <p class="lead">Commands that continue after their turn. Each result is delivered to the chat that started it.</p>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${value?.length === 0 && html`<p class="empty">No jobs yet. In a chat with the shell agent, <code>!&sleep 5; echo done</code> starts one.</p>`}
    ${value?.length > 0 && html`<ul class="rows">${value.map((job) => html`<${JobRow} job=${job} key=${job.resultId} />`)}</ul>`}
    ${more && html`<button type="button" aria-disabled=${busy} onClick=${more}>Show more</button>`}
  </section>`;
}

function JobRow({ job }) {
  return html`<li>
    <a class="rowlink" href=${`#/jobs/${job.resultId}`} data-job=${job.resultId}>
      <${Badge} state=${job.state} />
      <code class="clip">${job.command}</code>
      <span class="quiet"><${Moment} time=${job.created_at} /></span>
    </a>
  </li>`;
}

function Job({ id }) {
  const { value: job, problem, refresh } = usePolled(() => call("GET", `jobs/${id}`), LIST_EVERY, [id]);
  const [stop, stopping] = useAction(async () => {
    await call("POST", `jobs/${id}/stop`);
    await refresh();
  });
  return html`<section class="view">
    <p><a href="#/jobs">← All jobs</a></p>
    <h1>Job</h1>
    <${Trouble} problem=${problem} retry=${refresh} />
    ${job && html`<${JobFacts} job=${job} />
      ${job.state === "running" && session.may("jobs") && html`<p class="row">
        <button type="button" class="danger" aria-disabled=${stopping.busy} disabled=${job.stopping} onClick=${stop}>${job.stopping ? "Stopping…" : "Stop the job"}</button></p>`}
      <${Trouble} problem=${stopping.problem} />
      <h2>${job.state === "running" ? "Live log" : "Log"}</h2>
      <${JobLog} id=${id} live=${job.state === "running"} fallback=${job.output} />
      <${Files} files=${job.files} />`}
  </section>`;
}

function JobFacts({ job }) {
  const ended = job.finished_at && job.created_at ? span(Date.parse(job.finished_at) - Date.parse(job.created_at)) : "";
  return html`<dl class="facts">
    <dt>State</dt><dd><${Badge} state=${job.state} /> ${job.reason ?? ""}</dd>
    <dt>Command</dt><dd><pre class="command" tabIndex="0">${job.command}</pre></dd>
    ${typeof job.exit_code === "number" && html`<dt>Exit code</dt><dd>${job.exit_code}</dd>`}
    <dt>Started</dt><dd><${Moment} time=${job.created_at} /> ${ended && html`<span class="quiet">took ${ended}</span>`}</dd>
    <dt>Chat</dt><dd><a href=${`#/inbox/${job.conversation}`}>Open the conversation</a></dd>
    <dt>Id</dt><dd><code>${job.resultId}</code></dd>
  </dl>`;
}

/** The log of a job, polled every second while it runs. */
export function JobLog({ id, live, fallback = "" }) {
  const { value, problem } = usePolled(() => call("GET", `jobs/${id}/logs`), live ? LOG_EVERY : 0, [id, live]);
  const text = value?.output || fallback;
  return html`<div class="log">
    <${Trouble} problem=${problem} />
    ${value?.truncated && html`<p class="quiet">Only the end is stored.</p>`}
    <${Output} text=${text || (value === null ? "…" : "Nothing was written yet.")} label="Log" follow=${live} />
  </div>`;
}
