/** Elements made in one expression, and little else. */

type Child = Node | string | null | false;
type Attributes = Readonly<Record<string, string | number | boolean | null | ((event: Event) => void)>>;

/** An element; an attribute of false or null is left out, a function is a listener of that name. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  assign(element, attributes);
  element.append(...children.filter((child): child is Node | string => child !== null && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function s(tag: string, attributes: Attributes = {}, ...children: readonly Child[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  assign(element, attributes);
  element.append(...children.filter((child): child is Node | string => child !== null && child !== false));
  return element;
}

function assign(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, String(value));
  }
}

/** Writes text only where it differs, so that screen readers say only what is new. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element: HTMLElement, shown: boolean): void {
  element.hidden = !shown;
}

export function button(text: string, kind: "primary" | "plain" | "danger", press: () => void): HTMLButtonElement {
  return h("button", { type: "button", class: `button ${kind}`, click: press }, text);
}

let count = 0;

/** An id that no other element has. */
export function newId(): string {
  return `e${count++}`;
}

/** A titled part of a screen. */
export function card(title: string, ...children: readonly Child[]): HTMLElement {
  const id = newId();
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), ...children);
}

/** A list of facts: terms and what they are. */
export function facts(rows: readonly (readonly [string, Node | string])[]): HTMLDListElement {
  return h("dl", { class: "facts" }, ...rows.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}
