// Elements and numbers. What runs are called was written by others: text becomes text here, never markup.

export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'text') element.textContent = value;
    else if (key === 'class') element.className = value;
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

export function swatch(color) {
  const box = el('span', {class: color ? 'swatch' : 'swatch empty', 'aria-hidden': 'true'});
  if (color) box.style.background = color;
  return box;
}

// The number in the first unit that leaves fewer than `step` of it, as printed, or in the last.
function withUnit(value, step, digits, units) {
  let power = 0;
  while (power + 1 < units.length && Number(Math.abs(value).toPrecision(digits)) >= step) {
    value /= step;
    ++power;
  }
  return [Number(value.toPrecision(digits)), units[power]];
}

// 1234567 -> "1.235M", 0.00031 -> "3.1e-4".
export function short(value) {
  if (value === null || value === undefined) return '';
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'NaN' : value > 0 ? 'inf' : '-inf';
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e33) return withUnit(value, 1000, 4, ['', 'k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y', 'R', 'Q']).join('');
  if (size !== 0 && (size < 1e-3 || size >= 1e4)) return value.toExponential(2).replace('.00e', 'e');
  return String(Number(value.toPrecision(5)));
}

export function duration(seconds) {
  const sign = seconds < 0 ? '-' : '';
  const s = Math.abs(seconds);
  if (s < 100) return `${sign}${Number(s.toPrecision(3))}s`;
  if (s < 6000) return `${sign}${Math.floor(s / 60)}m${String(Math.floor(s % 60)).padStart(2, '0')}`;
  if (s < 172800) return `${sign}${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, '0')}`;
  return `${sign}${Math.floor(s / 86400)}d${String(Math.floor((s % 86400) / 3600)).padStart(2, '0')}h`;
}

// Of bytes.
export function size(bytes) {
  return withUnit(bytes, 1024, 4, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB']).join(' ');
}

// Has the browser save it under this name.
export function save(address, name) {
  el('a', {href: address, download: name.replaceAll('/', '_')}).click();
}

export function showError(place, error) {
  place.replaceChildren(el('p', {class: 'error', role: 'alert', text: error.message}));
}
