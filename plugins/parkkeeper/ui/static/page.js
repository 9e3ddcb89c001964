// The page is made on the server; this follows Airflow's theme, tells times in the viewer's zone, keeps the figures fresh,
// and starts DAGs through Airflow's own API with the viewer's own rights. It writes nothing else.
"use strict";

const REFRESH = 30_000;

function follow(root) {
  const apply = () => {
    const dark = root.classList.contains("dark");
    const light = root.classList.contains("light");
    document.documentElement.dataset.theme = dark ? "dark" : light ? "light" : "";
  };
  new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class"] });
  apply();
}

if (window.parent !== window) {
  try {
    follow(window.parent.document.documentElement);
  } catch (error) {
    if (error.name !== "SecurityError") throw error; // Another site's frame: the system's preference holds.
  }
}

// Where Airflow's UI and API are, wherever it is served below.
const airflow = (path) => new URL(`../${path}`, document.baseURI);

function tellTimes(root) {
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  for (const time of root.querySelectorAll("time:not([title])")) {
    time.title = time.textContent;
    time.textContent = local.format(new Date(time.dateTime));
  }
}

// An in-app link: the frame may not navigate its parent, but both are of one origin.
function open(url) {
  if (window.parent === window) {
    window.location.assign(url);
    return;
  }
  window.parent.history.pushState({}, "", url);
  window.parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Without an answer, one that says so: whoever asked has to show what became of it.
async function request(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return Response.json({ detail: "The server cannot be reached. Try again." }, { status: 503 });
  }
}

async function reason(answer) {
  if (answer.status === 401) return "You are not logged in any more. Load Airflow's page again.";
  const said = await answer.json().catch(() => ({}));
  return typeof said.detail === "string" ? said.detail : `Airflow answered with status ${answer.status}.`;
}

async function drawCharts(root) {
  const box = root.querySelector("#charts");
  if (!box) return;
  const answer = await request(new URL(box.dataset.address, document.baseURI));
  if (!answer.ok) {
    box.replaceChildren(element("p", `The charts could not be drawn: ${await reason(answer)}`, { class: "empty" }));
    return;
  }
  const drawn = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
  box.replaceChildren(document.importNode(drawn, true));
}

const number = (value) => value.toLocaleString("en");

async function showPlan(button) {
  const place = document.getElementById("planned");
  button.disabled = true;
  place.replaceChildren(element("p", "Counting the rows of the slot …", { class: "empty" }));
  const answer = await request(new URL(button.dataset.address, document.baseURI));
  button.disabled = false;
  if (!answer.ok) {
    place.replaceChildren(element("p", await reason(answer), { class: "notice", role: "alert" }));
    return;
  }
  const plan = await answer.json();
  if (plan.outcome !== "pruned") {
    place.replaceChildren(element("p", plan.sentence ?? plan.outcome, { class: "fine" }));
    return;
  }
  const heads = ["Queue", "Kind", "Carried", "Dropped failed", "Dropped completed"];
  const table = element("table", "");
  const head = table.createTHead().insertRow();
  for (const [place, text] of heads.entries())
    head.append(element("th", text, { scope: "col", ...(place > 1 && { class: "number" }) }));
  const body = table.createTBody();
  for (const row of plan.by_kind) {
    const line = body.insertRow();
    line.append(element("th", row.queue, { scope: "row" }), element("td", row.kind));
    for (const value of [row.carried_failed_rows, row.pruned_failed, row.pruned_completed])
      line.append(element("td", number(value), { class: "number" }));
  }
  const sum =
    `It would reclaim ${plan.slot < 0 ? "floor segment" : "slot"} ${plan.slot}: carry ${number(plan.carried_failed_rows)} failed jobs, ` +
    `drop ${number(plan.pruned_failed)} failed and ${number(plan.pruned_completed)} others.`;
  place.replaceChildren(element("p", sum), table);
}

// What an action would touch and whether its DAG runs, before anything is started.
async function ask(button) {
  const { action, dag, heading, rehearsal, until } = button.dataset;
  const conf = JSON.parse(button.dataset.conf);
  const dialog = document.getElementById("confirm");
  const part = (name) => document.getElementById(`confirm-${name}`);
  const start = part("start");
  part("title").textContent = heading;
  part("sentence").textContent = `It runs the DAG ${dag} with these parameters:`;
  const tellConf = () =>
    part("conf").replaceChildren(
      ...Object.entries(conf).flatMap(([name, value]) => [
        element("dt", name),
        element("dd", typeof value === "string" ? value : JSON.stringify(value)),
      ]),
    );
  tellConf();
  part("rows").textContent = "Counting …";
  part("said").replaceChildren();
  start.disabled = true;
  start.hidden = false;
  dialog.dataset.action = action;
  dialog.showModal();

  const [counted, known] = await Promise.all([
    request(new URL(`api/namespaces/${conf.namespace}/rehearsals/${rehearsal}`, document.baseURI)),
    request(airflow(`api/v2/dags/${encodeURIComponent(dag)}`)),
  ]);
  if (!counted.ok) {
    part("rows").textContent = await reason(counted);
    return;
  }
  const { rows, at_least: atLeast, sentence, taken_at: takenAt } = await counted.json();
  if (until) conf[until] = takenAt; // What was counted is what is touched.
  tellConf();
  part("rows").textContent = `${atLeast ? "At least " : ""}${number(rows)} ${rows === 1 ? "row" : "rows"}. ${sentence}`;
  if (known.status === 404) {
    part("said").textContent = `This Airflow has no DAG ${dag}. Copy its file from the package's dags folder first.`;
  } else if (!known.ok) {
    part("said").textContent = `You may not see the DAG ${dag}: ${await reason(known)}`;
  } else if ((await known.json()).is_paused) {
    part("said").textContent = `The DAG ${dag} is paused: a run would wait until it is unpaused.`;
    part("said").append(" ", link(`dags/${encodeURIComponent(dag)}`, "Open the DAG"));
  } else {
    start.disabled = rows === 0;
    start.onclick = () => run(dag, conf, start, part("said"));
  }
}

function link(path, text) {
  const made = element("a", text, { href: airflow(path) });
  made.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("confirm").close();
    open(made.href);
  });
  return made;
}

async function run(dag, conf, start, said) {
  start.disabled = true;
  const answer = await request(airflow(`api/v2/dags/${encodeURIComponent(dag)}/dagRuns`), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ logical_date: null, conf }),
  });
  if (answer.status === 403) {
    said.textContent = "Your role may look and not start this DAG. Nothing was started.";
  } else if (answer.status >= 500) {
    said.textContent = "It is not known whether a run was started: look at the runs of the DAG before you start it again. ";
    said.append(link(`dags/${encodeURIComponent(dag)}`, "Open the DAG"));
  } else if (!answer.ok) {
    said.textContent = `Nothing was started: ${await reason(answer)}`;
  } else {
    const { dag_run_id: id } = await answer.json();
    said.replaceChildren("Started. ", link(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(id)}`, "Open the run"));
    start.hidden = true;
  }
}

// What is wider than the screen can be moved by the keyboard too.
function reachTables() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth <= box.clientWidth) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `Table: ${box.closest("section").querySelector("h2").textContent}`);
  }
}

function enliven(root) {
  tellTimes(root);
  reachTables();
  void drawCharts(root);
  for (const button of root.querySelectorAll("button.act, #plan")) button.hidden = false;
}

// What is typed, opened or asked for stays: the figures are replaced only where nobody is at work.
function busy() {
  const at = document.activeElement;
  return (
    document.hidden ||
    document.getElementById("confirm").open ||
    document.querySelector("details[open]") !== null ||
    document.getElementById("planned")?.hasChildNodes() ||
    window.getSelection().type === "Range" ||
    (at !== null && at.matches("input, select, button, a, summary, .scroll"))
  );
}

async function refresh() {
  if (busy()) return;
  const answer = await request(window.location.href, { headers: { Accept: "application/json" } });
  if (busy()) return;
  const stale = document.getElementById("stale");
  // What is shown stays, with the time at which it was true.
  stale.textContent = answer.ok ? "" : `These figures are no longer refreshed: ${await reason(answer)}`;
  if (!answer.ok) return;
  const scrolled = [...document.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const old = document.getElementById("charts");
  for (const part of ["#body", ".taken"]) {
    const [shown, next] = [document.querySelector(part), fresh.querySelector(part)];
    if (shown && next) shown.replaceWith(document.importNode(next, true));
  }
  const charts = document.getElementById("charts");
  if (old && charts) charts.replaceChildren(...old.childNodes); // Until the new ones are drawn.
  for (const [place, box] of document.querySelectorAll(".scroll").entries()) box.scrollLeft = scrolled[place] ?? 0;
  enliven(document);
}

document.addEventListener("DOMContentLoaded", () => {
  enliven(document);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.matches("button.act")) void ask(button);
    else if (button?.id === "plan") void showPlan(button);
    const run = event.target.closest("a.run");
    if (run) {
      event.preventDefault();
      open(run.href);
    }
  });
  setInterval(() => void refresh(), REFRESH);
  window.addEventListener("resize", reachTables);
  const select = document.getElementById("namespace");
  if (!select) return;
  select.form.classList.add("scripted");
  select.addEventListener("change", () => select.form.submit());
});
