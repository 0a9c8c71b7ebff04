// What the chosen runs found amiss while they trained, newest first.
import {getJson} from './api.js';
import {byId, el, swatch} from './dom.js';
import {nameOf} from './runs.js';
import {change, colorOfRun, state} from './state.js';

const kKinds = {non_finite: 'not finite', spike: 'spike', collapse: 'collapse', dead_expert: 'dead expert', slow: 'slow',
                silent: 'silent'};
const kAround = 0.15;  // of the steps up to an alert, what is shown of those beside it

let alerts = [];
let problem = '';

// Asks for those of the chosen runs; whether they are others than before. Their number is in the tab's name.
export async function refreshAlerts() {
  const before = JSON.stringify([alerts, problem]);
  try {
    alerts = state.run.length === 0 ? [] : (await getJson('alerts', {run: state.run})).alerts;
    alerts.sort((a, b) => b.ts_ms - a.ts_ms);
    problem = '';
  } catch (error) {
    problem = error.message;
  }
  byId('tab-alerts').textContent = alerts.length === 0 ? 'Alerts' : `Alerts (${alerts.length})`;
  return before !== JSON.stringify([alerts, problem]);
}

// The curve that shows it, at its step.
function goTo({tag, step}) {
  const room = Math.max(10, Math.round(step * kAround));
  change({view: 'charts', x: 'step', from: String(Math.max(0, step - room)), to: String(step + room),
          tag: tag === '' || state.tag.includes(tag) ? state.tag : [tag, ...state.tag]});
}

export function showAlerts(place) {
  const note = problem || (state.run.length === 0 ? 'Choose runs from the list to see what they found amiss.'
                           : alerts.length === 0 ? 'The chosen runs have found nothing amiss.' : '');
  if (note !== '') {
    place.replaceChildren(el('p', {class: 'hint', text: note}));
    return;
  }
  const head = ['run', 'step', 'what', 'when', ''].map((text) => (text === '' ? el('td') : el('th', {scope: 'col', text})));
  const rows = alerts.map((alert) => el('tr', {},
      el('td', {class: 'name'}, swatch(colorOfRun(alert.run)), nameOf(alert.run)),
      el('td', {class: 'number', text: alert.step}),
      el('td', {class: 'name'}, el('strong', {text: kKinds[alert.kind] ?? alert.kind}), ` ${alert.text}`),
      el('td', {text: new Date(alert.ts_ms).toLocaleString()}),
      el('td', {}, el('button', {type: 'button', text: 'Show', 'aria-label': `show step ${alert.step}`,
                                 onclick: () => goTo(alert)}))));
  place.replaceChildren(el('div', {class: 'scroll heat', tabindex: '0', role: 'region', 'aria-label': 'Alerts'},
                           el('table', {id: 'alerts'}, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...rows))));
}
