// A page about one document of the extender, with a pool to choose. Pages extend it by `parts`.

import { poolName } from "./fleet.js";
import { element, renew } from "./page_parts.js";

export class DocumentPage {
  constructor({ title, path, kind, navigate, address, hasSearch = false }) {
    this.path = path;
    this.kind = kind;
    this.address = address;
    this.document = null;
    this.heading = element("h1", { tabIndex: -1 }, title);
    this.pools = element("select", { name: "pool" });
    this.pools.addEventListener("change", () => navigate({ pool: this.pools.value }, { replace: true }));
    this.search = element("input", { type: "search", name: "search", autocomplete: "off", spellcheck: false });
    this.search.addEventListener("input", () => navigate({ search: this.search.value }, { replace: true }));
    this.body = element("div", {}, element("p", { className: "note" }, "Loading …"));
    this.root = element("div", {}, this.heading,
      element("div", { className: "controls" }, element("label", {}, "Pool", this.pools),
        hasSearch ? element("label", {}, "Name contains", this.search) : null),
      this.body);
  }

  update(state) {
    this.state = state;
    if (this.search.value !== state.search) this.search.value = state.search;
    this.offerPools();
    this.tick();
  }

  // The pools of the document, and the one that the URL asks for.
  offerPools() {
    const offered = [...new Set(["", ...[...(this.document?.pool ?? [])].sort(), this.state.pool])];
    if (offered.join("\n") !== [...this.pools.options].map((option) => option.value).join("\n")) {
      this.pools.replaceChildren(...offered.map((pool) =>
        element("option", { value: pool }, pool === "" ? "all" : poolName(pool))));
    }
    this.pools.value = this.state.pool;
  }

  // The indexes of the rows of the pool that is chosen.
  rows() {
    return [...this.document.pool.keys()].filter((row) =>
      this.state.pool === "" || this.document.pool[row] === this.state.pool);
  }

  async load(ask) {
    const document = await ask(this.path);
    if (document?.kind !== this.kind) throw new Error(`the answer is no ${this.kind} of an extender`);
    return document;
  }

  draw(document, state) {
    this.document = document;
    this.update(state);
  }

  // Ages grow, also while nothing else changes.
  tick() {
    if (this.document) renew(this.body, ...this.parts(this.document));
  }

  resize() {}

  close() {}
}

export function note(...children) {
  return element("p", { className: "note" }, ...children);
}

// Why a document is old, if it says so.
export function oldness({ problem }) {
  return problem ? [note(`Not up to date: ${problem}`)] : [];
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}
