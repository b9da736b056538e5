// Places boxes in layers: each below all that it is reached from.

const LAYER = 96; // height of a layer, with the frames between two
const GAP = 24; // between two boxes of a layer

// Return where each item lies. Edges lead from earlier items to later ones.
// Layers by the longest path, positions in a layer near the average of what it is joined to.
function placeItems(items, edges, widthOf) {
  const rank = new Map(items.map((item) => [item, 0]));
  const joined = new Map(items.map((item) => [item, { above: [], below: [] }]));
  for (const [from, to] of edges) {
    joined.get(to).above.push(from);
    joined.get(from).below.push(to);
  }
  for (const item of items) {
    for (const from of joined.get(item).above) rank.set(item, Math.max(rank.get(item), rank.get(from) + 1));
  }
  const layers = [];
  for (const item of items) (layers[rank.get(item)] ||= []).push(item);
  const at = new Map();
  for (const layer of layers) {
    let x = 0;
    for (const item of layer) {
      const width = widthOf(item);
      at.set(item, { x, width, height: 40 });
      x += width + GAP;
    }
  }
  for (let sweep = 0; sweep < 6; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      spread(layer, at, (item) => (down ? joined.get(item).above : joined.get(item).below));
    }
  }
  layers.forEach((layer, depth) => layer.forEach((item) => { at.get(item).y = depth * LAYER; }));
  return at;
}

// Move the items of a layer near the centres of what they are joined to, without overlaps.
function spread(layer, at, nearOf) {
  const centre = (item) => at.get(item).x + at.get(item).width / 2;
  const wish = new Map(layer.map((item) => {
    const near = nearOf(item);
    const sum = near.reduce((total, other) => total + centre(other), 0);
    return [item, near.length ? sum / near.length : centre(item)];
  }));
  layer.sort((a, b) => wish.get(a) - wish.get(b));
  let free = -Infinity;
  for (const item of layer) {
    const spot = at.get(item);
    spot.x = Math.max(free, wish.get(item) - spot.width / 2);
    free = spot.x + spot.width + GAP;
  }
  const drift = layer.reduce((total, item) => total + centre(item) - wish.get(item), 0) / layer.length;
  for (const item of layer) at.get(item).x -= drift;
}
