// Tables: columns are {name, kind}; kind is text, number, bytes, bar, or what a section shows when
// it is followed: node, step.

function cell(column, value, largest, follow) {
  if (column.kind === "bar") {
    // value: [length, limit]; the second bar is what the machine could do at best
    const bar = make("span", { class: "bar" });
    for (const part of value) {
      const length = make("i");
      length.style.width = `${(100 * part) / (largest || 1)}%`;
      bar.append(length);
    }
    return make("td", {}, bar);
  }
  if (column.kind === "share") return make("td", { class: "number" }, value === null ? "busy" : String(value));
  if (column.kind === "histogram") return make("td", {}, showHistogram(value));
  if (column.kind === "bytes") return make("td", { class: "number" }, showBytes(value));
  if (column.kind === "number") return make("td", { class: "number" }, value === null ? "" : String(value));
  if (column.kind === "text") return make("td", {}, value);
  return make("td", {}, button(String(value), () => follow(column.kind, value)));
}

// Bars of counts; the table has the values at both ends.
function showHistogram(counts) {
  const largest = Math.max(...counts, 1);
  const picture = draw("svg", { class: "histogram", viewBox: `0 0 ${counts.length * 4} 24`, role: "img", "aria-label": `${counts.length} bins` });
  counts.forEach((count, bin) => {
    const height = count ? Math.max((24 * count) / largest, 1) : 0;
    picture.append(draw("rect", { x: bin * 4, y: 24 - height, width: 3, height }));
  });
  return counts.length ? picture : "";
}

function showTable(section, follow) {
  const { columns } = section;
  const body = make("tbody");
  const head = make("tr");
  let sorted = { index: -1, falling: false };
  const key = (value) => (Array.isArray(value) ? value[0] : value);
  const fill = () => {
    const rows = [...section.rows];
    if (sorted.index >= 0) {
      rows.sort((a, b) => {
        const [x, y] = [key(a[sorted.index]), key(b[sorted.index])];
        const order = x < y ? -1 : x > y ? 1 : 0;
        return sorted.falling ? -order : order;
      });
    }
    const largest = columns.map((column, index) =>
      column.kind === "bar" ? Math.max(...section.rows.map((row) => Math.max(...row[index])), 0) : 0,
    );
    body.replaceChildren(
      ...rows.map((row) =>
        make("tr", {}, ...row.map((value, i) => cell(columns[i], value, largest[i], follow))),
      ),
    );
  };
  columns.forEach((column, index) => {
    const sorter = make("button", { type: "button" }, column.name);
    const number = ["number", "bytes", "share"].includes(column.kind);
    const header = make("th", { scope: "col", class: number ? "number" : "" }, sorter);
    sorter.addEventListener("click", () => {
      const falling = sorted.index === index ? !sorted.falling : column.kind !== "text";
      sorted = { index, falling };
      for (const other of head.children) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", falling ? "descending" : "ascending");
      fill();
    });
    head.append(header);
  });
  fill();
  const table = make("table", { "aria-label": section.title }, make("thead", {}, head), body);
  const scroll = make("div", { class: "scroll", tabindex: "0" }, table);
  return section.note ? make("div", {}, make("p", { class: "faint" }, section.note), scroll) : scroll;
}
