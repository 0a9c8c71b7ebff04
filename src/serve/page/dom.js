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

// 1234567 -> "1.235M", 0.00031 -> "3.1e-4".
export function short(value) {
  if (value === null || value === undefined) return '';
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'NaN' : value > 0 ? 'inf' : '-inf';
  const size = Math.abs(value);
  if (size >= 1e4) {
    const power = Math.min(6, Math.floor(Math.log10(size) / 3));
    return `${Number((value / 10 ** (3 * power)).toPrecision(4))}${['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}`;
  }
  if (size !== 0 && size < 1e-3) return value.toExponential(2).replace('.00e', 'e');
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
  const power = bytes < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(bytes) / 10));
  return `${Number((bytes / 1024 ** power).toPrecision(3))} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}

// Has the browser save it under this name.
export function save(address, name) {
  el('a', {href: address, download: name.replaceAll('/', '_')}).click();
}

export function showError(place, error) {
  place.replaceChildren(el('p', {class: 'error', role: 'alert', text: error.message}));
}
