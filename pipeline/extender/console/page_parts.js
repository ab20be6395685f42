// Parts of pages. Text from outside becomes text nodes, and never HTML.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

// Text with control characters, those that change the direction of writing, and others without a
// shape as escapes.
export function visible(text) {
  return String(text).replace(UNSEEN, (letter) => {
    const code = letter.codePointAt(0).toString(16);
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

// An element with properties and children: elements, or texts.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null)
    .map((child) => (child instanceof Node ? child : visible(child))));
  return made;
}

// Give an element other children. What stays the same is not touched: a selection, the place in a
// table, the focus, and what a screen reader is about to read are still there.
export function renew(root, ...children) {
  const active = root.contains(document.activeElement) ? document.activeElement : null;
  const href = active?.getAttribute("href") ?? null;
  const links = () => [...root.querySelectorAll("a")].filter((link) => link.getAttribute("href") === href);
  const place = links().indexOf(active);
  const index = [...root.querySelectorAll(".scroll")].findIndex((box) => box.contains(active));
  match(root, children.map((child) => (child instanceof Node ? child : document.createTextNode(visible(child)))));
  if (active === null || active.isConnected) return;
  const same = href === null ? [] : links();
  (same[place] ?? same[0] ?? root.querySelectorAll(".scroll")[index])?.focus({ preventScroll: true });
}

// Make the children of an element equal to others, with as few changes as are easily found.
function match(root, wanted) {
  const there = [...root.childNodes];
  wanted.forEach((node, i) => {
    const old = there[i];
    if (old === undefined) root.append(node);
    else if (old.isEqualNode(node)) return;
    else if (old instanceof Element && node instanceof Element && old.tagName === node.tagName && old.tagName !== "A") {
      for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      match(old, [...node.childNodes]);
    } else old.replaceWith(node);
  });
  there.slice(wanted.length).forEach((old) => old.remove());
}

// A table. Columns are [header, whether it is an amount]; cells are texts or elements.
export function table(caption, columns, rows) {
  const kind = (index) => (columns[index][1] ? "amount" : index ? "" : "name");
  const head = columns.map(([header], index) =>
    element("th", { scope: "col", className: kind(index) }, header));
  const body = rows.map((row) => element("tr", {}, row.map((cell, index) =>
    element("td", { className: kind(index) }, cell))));
  return element("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": caption },
    element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

export const UNKNOWN = "–";

export function cores(millicores) {
  return millicores === null ? UNKNOWN : (millicores / 1000).toFixed(millicores < 100000 ? 2 : 0);
}

export function gibibytes(mebibytes) {
  return mebibytes === null ? UNKNOWN : `${(mebibytes / 1024).toFixed(mebibytes < 102400 ? 2 : 0)} GiB`;
}

export function percent(share) {
  return share === null ? UNKNOWN : `${Math.round(share * 100)}%`;
}

export function age(seconds) {
  if (seconds === null) return UNKNOWN;
  const units = [[86400, "d"], [3600, "h"], [60, "m"]];
  const unit = units.find(([length]) => seconds >= 2 * length);
  return unit ? `${Math.floor(seconds / unit[0])}${unit[1]}` : `${Math.max(0, Math.round(seconds))}s`;
}
