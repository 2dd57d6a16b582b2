/** What can be told of a page's accessibility without a person; runs in the browser, so it is one function. */

export function looks() {
  const faults = [];
  const isVisible = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && element.getClientRects().length > 0;
  const about = (element) => element.outerHTML.slice(0, 120);

  for (const element of document.querySelectorAll("a[href], button, input, select, textarea, summary, [role=img]")) {
    if (!isVisible(element)) continue;
    const labels = [...(element.labels ?? [])].map((label) => label.textContent).join("");
    const name = element.getAttribute("aria-label") ?? (labels || element.textContent || element.getAttribute("title"));
    if (!name?.trim()) faults.push(`no name: ${about(element)}`);
  }
  for (const image of document.images) {
    if (!image.hasAttribute("alt")) faults.push(`no alt: ${about(image)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) faults.push(`${document.querySelectorAll("h1").length} headings of level 1`);
  for (const table of document.querySelectorAll("table")) {
    if (!table.querySelector("th[scope]")) faults.push(`no headings: ${about(table)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
  if (twice.length > 0) faults.push(`ids twice: ${twice}`);
  if (document.documentElement.scrollWidth > innerWidth) faults.push(`scrolls sideways: ${document.documentElement.scrollWidth} px`);

  // Contrast of WCAG 2, level AA.
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !isVisible(element) || element.closest(":disabled, option")) continue;
    const style = getComputedStyle(element);
    const key = `${style.color} ${element.className} ${element.tagName}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const [one, other] = [luminance(rgba(style.color)), luminance(ground(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (isLarge ? 3 : 4.5)) faults.push(`contrast ${contrast.toFixed(2)}: ${about(element)}`);
  }
  return faults;
}
