"use strict";
// Shows the sections that viewer.py describes. All text enters the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function shorten(text, most) {
  return text.length <= most ? text : text.slice(0, most - 1) + "\u2026";
}

// The last part of a module's path tells it from its neighbours.
function shortenPath(text, most) {
  return text.length <= most ? text : "\u2026" + text.slice(text.length - most + 1);
}

function showBytes(count) {
  if (count < 1e3) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(1)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

function showFacts(rows) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of rows) list.append(make("dt", {}, name), make("dd", {}, value));
  return list;
}

// Let an element be pressed by mouse and keyboard as a button is.
function press(element, action) {
  element.addEventListener("click", action);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      action();
    }
  });
}

function button(name, action, attributes = {}) {
  const element = make("button", { type: "button", class: "tool", ...attributes }, name);
  element.addEventListener("click", action);
  return element;
}
