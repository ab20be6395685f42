// The console: the URL says what is shown; the extender is asked again every few seconds.

import { AccuracyPage } from "./accuracy_page.js";
import { FleetPage } from "./fleet_page.js";
import { NodePage } from "./node_page.js";
import { age, element, visible } from "./page_parts.js";
import { PolicyPage } from "./policy_page.js";
import { Refused, ask, now, setToken } from "./queries.js";
import { ReliefPage } from "./relief_page.js";
import { WhatIfPage } from "./what_if_page.js";

const POLL_SECONDS = 5;
const LONGEST_BACK_OFF_SECONDS = 30;
const PAGES = {
  "": ["Fleet", FleetPage], relief: ["Hot nodes", ReliefPage], accuracy: ["Accuracy", AccuracyPage],
  policy: ["Policy", PolicyPage], "what-if": ["What-if", WhatIfPage],
};
const main = document.getElementById("main");
const home = document.getElementById("home");
const links = Object.entries(PAGES).map(([name, [title]]) => [name, element("a", {}, title)]);
document.getElementById("pages").append(...links.map(([, link]) => link));
const asOf = document.getElementById("as-of");
const problem = document.getElementById("problem");
const outage = document.getElementById("outage");
const DEFAULTS = { page: "", node: "", amount: "cpu_usage", sort: "value", pool: "", search: "", hot: "", stale: "", span: "3600", hide: "", result: "", measure: "" };
let page = null;
let shown = null;
let timer = 0;
let turn = 0;
let failures = 0;
let answeredAt = null;

// What the URL asks for; parameters at their default are not in it.
function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, given.get(name) ?? value]));
}

export function address(changes) {
  const entries = Object.entries({ ...readState(), ...changes })
    .filter(([name, value]) => value !== DEFAULTS[name]);
  return `#${new URLSearchParams(entries)}`;
}

function navigate(changes, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address(changes));
  else history.pushState(null, "", address(changes));
  show();
}

// A screen reader speaks these texts: they change only with the problem.
function say(text, place = problem) {
  if (place.textContent !== text) place.textContent = text;
}

// What a reader must know while Kafka does not feed the extender: the figures get older.
function outageText(feeds) {
  const away = (feeds?.items ?? []).filter(({ connected }) => !connected);
  if (!away.length) {
    const missing = [...new Set((feeds?.items ?? []).flatMap((feed) => feed.missing))];
    return missing.length ? `Missing, or without a right to read: ${missing.map(visible).join(", ")}.` : "";
  }
  if (away.length < feeds.items.length) {
    return `Not up to date: ${away.map(({ name, message }) => `${name} (${visible(message)})`).join("; ")}.`;
  }
  const contact = Math.max(...away.map(({ contact_seconds: seconds }) => seconds ?? 0));
  const since = contact ? new Date(contact * 1000).toLocaleString() : "the extender started";
  return `Kafka has not answered since ${since}. Figures are not newer than that.`;
}

// Show the page that the URL names, and ask for its documents if it needs others.
function show() {
  const state = readState();
  const name = Object.hasOwn(PAGES, state.page) ? state.page : "";
  const wanted = state.node ? `node ${state.node}` : name;
  const isNew = page === null || wanted !== shown;
  if (isNew) {
    const isFirst = page === null;
    page?.close();
    page = state.node ? new NodePage(state.node, navigate, address) : new PAGES[name][1](navigate, address);
    shown = wanted;
    main.replaceChildren(page.root);
    if (!isFirst) page.heading.focus();
  }
  const title = state.node ? visible(state.node) : name && PAGES[name][0];
  document.title = title ? `${title} – Springtide` : "Springtide console";
  home.href = address({ node: "", page: "" });
  for (const [of, link] of links) {
    link.href = address({ node: "", page: of });
    if (!state.node && of === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (page.update(state) || isNew) refresh();
}

// When the figures were asked for; while no answer comes also how long ago that was.
function showAge() {
  if (!answeredAt) return;
  const seconds = (performance.now() - answeredAt.milliseconds) / 1000;
  const text = `As of ${answeredAt.time}${failures ? `, ${age(seconds)} ago` : ""}`;
  if (asOf.textContent !== text) asOf.textContent = text;
}

async function refresh() {
  clearTimeout(timer);
  const mine = (turn += 1);
  const asked = page;
  let seconds = POLL_SECONDS;
  try {
    ask("v1/feeds").then((feeds) => say(outageText(feeds), outage), () => {});
    const documents = await asked.load(ask);
    if (mine !== turn) return;
    asked.draw(documents, readState());
    failures = 0;
    answeredAt = { time: new Date(now() * 1000).toLocaleTimeString(), milliseconds: performance.now() };
    showAge();
    say("");
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Refused) return askForToken(error.message);
    failures += 1;
    seconds = Math.max(error.pauseSeconds ?? 0,
      Math.min(LONGEST_BACK_OFF_SECONDS, POLL_SECONDS * 2 ** failures) * (0.75 + Math.random() / 4));
    asked.tick();
    showAge();
    say(`No update: ${visible(error.message)}`);
  }
  if (!document.hidden) timer = setTimeout(refresh, seconds * 1000);
}

function askForToken(why) {
  page?.close();
  page = null;  // Nothing is asked for until there is a token.
  answeredAt = null;
  asOf.textContent = "";
  say(`Refused: ${visible(why)}`);
  const field = element("input", { type: "password", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    if (!setToken(field.value.trim())) return say("A token has ASCII characters only.");
    show();
    page.heading.focus();
  };
  main.replaceChildren(element("form", { className: "controls", onsubmit: submit },
    element("h1", {}, "The extender asks for a token"),
    element("label", {}, "Token of extender.query_token_file", field),
    element("button", { type: "submit" }, "Continue")));
  field.focus();
}

setInterval(showAge, 1000);
addEventListener("popstate", show);
addEventListener("resize", () => page?.resize());
addEventListener("online", () => page && refresh());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.resize());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (page) refresh();
});
show();
