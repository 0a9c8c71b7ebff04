// The memory that a run planned before its first step, part by part.
import {getJson} from './api.js';
import {el, showError, size} from './dom.js';

function table(title, regions) {
  const all = regions.reduce((sum, {bytes}) => sum + bytes, 0);
  const rows = [...regions].sort((a, b) => b.bytes - a.bytes).map(({name, bytes, meaning}) => {
    const bar = el('div', {class: 'bar', 'aria-hidden': 'true'});
    bar.style.width = `${all > 0 ? 100 * bytes / all : 0}%`;
    return el('tr', {}, el('th', {scope: 'row', class: 'name', text: name, title: meaning}),
              el('td', {class: 'number', text: size(bytes)}), el('td', {class: 'bars'}, bar),
              el('td', {class: 'name', text: meaning}));
  });
  const head = ['part', 'size', 'share', 'what it is'].map((text) => el('th', {scope: 'col', text}));
  return el('table', {class: 'plan'}, el('caption', {text: `${title}: ${size(all)}`}),
            el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...rows));
}

export async function showMemory(place, run) {
  if (run === null) {
    place.replaceChildren(el('p', {class: 'hint', text: 'Choose a run from the list to see what memory it planned.'}));
    return;
  }
  try {
    const {regions} = await getJson('memory', {run});
    const parts = [['In the memory of a rank\'s device', regions.filter((one) => one.on_device)],
                   ['In the memory of the host', regions.filter((one) => !one.on_device)]].filter(([, list]) => list.length > 0);
    if (parts.length === 0) {
      place.replaceChildren(el('p', {class: 'hint', text: 'This run has kept no plan of its memory.'}));
      return;
    }
    place.replaceChildren(el('div', {class: 'scroll heat', tabindex: '0', role: 'region', 'aria-label': 'Planned memory'},
                             ...parts.map(([title, list]) => table(title, list))));
  } catch (error) {
    showError(place, error);
  }
}
