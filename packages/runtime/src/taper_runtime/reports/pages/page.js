// The page: one section below the other. A section that can be followed to is in `follow`.

const follow = {};

const SECTIONS = {
  facts: (section) => showFacts(section.rows),
  warnings: (section) => make("div", {}, ...section.items.map((text) => make("p", { class: "warning" }, text))),
  table: (section) => showTable(section, (kind, value) => follow[kind] && follow[kind](value)),
  steps: showSteps,
  curve: showCurve,
  file: (section) => {
    const address = URL.createObjectURL(new Blob([section.text], { type: "application/json" }));
    const link = make("a", { href: address, download: section.name }, `Save ${section.name}`);
    return make("div", {}, make("p", {}, link), make("p", { class: "faint" }, section.note));
  },
  graph: (section) => {
    const view = new GraphView(section);
    follow.node = (id) => { if (view.selectNamed(id)) view.element.scrollIntoView({ block: "start" }); };
    return view.element;
  },
};

function main() {
  const page = JSON.parse(document.getElementById("data").textContent);
  document.title = page.title;
  const contents = make("nav", { "aria-label": "Contents" });
  const body = make("main");
  body.append(make("h1", {}, page.title), make("p", { class: "faint" }, page.subtitle), contents);
  document.body.replaceChildren(body);
  page.sections.forEach((section, number) => {
    const id = `section-${number}`;
    contents.append(make("a", { href: `#${id}` }, section.title));
    const content = SECTIONS[section.kind](section);
    body.append(make("section", { id, "aria-label": section.title }, make("h2", {}, section.title), content));
  });
  document.documentElement.dataset.ready = "yes";
}
