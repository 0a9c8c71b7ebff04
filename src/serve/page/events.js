// What has changed, as the server tells it: one stream for all tabs of a browser, which allows six connections to a
// server, by a shared worker whose script this is, too. A browser without such workers has a stream for each tab.

async function follow(token, signal, tell) {
  while (!signal.aborted) {
    let refused = false;
    try {
      const reply = await fetch('api/events', {headers: {Authorization: `Bearer ${token}`}, signal});
      refused = reply.status === 401;
      if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
      tell({connected: true});
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = '';;) {
        const {value, done} = await reader.read();
        if (done) break;
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        for (const line of lines) {
          if (line.startsWith('data: ')) tell(JSON.parse(line.slice(6)));
        }
      }
    } catch { /* the server is gone, or refuses: tried again */ }
    tell({connected: false, refused});
    await new Promise((done) => setTimeout(done, 1000));
  }
}

// Calls tell({connected, refused}) and tell({list, runs: [[run, rank]...]}).
export function listen(token, tell) {
  if (typeof SharedWorker === 'undefined') {
    follow(token, new AbortController().signal, tell);
    return;
  }
  const worker = new SharedWorker('events.js', {type: 'module', name: 'nmoe events'});
  worker.port.onmessage = (message) => tell(message.data);
  worker.port.postMessage({token});
  window.addEventListener('pagehide', () => worker.port.postMessage({bye: true}));
  window.addEventListener('pageshow', (event) => {
    if (event.persisted) worker.port.postMessage({token});
  });
}

function serveTabs() {
  const ports = new Set();
  let current = {token: null, stop: null, state: {connected: false}};
  const tell = (message) => {
    if ('connected' in message) current.state = message;
    for (const port of ports) port.postMessage(message);
  };
  self.onconnect = (event) => {
    const port = event.ports[0];
    port.onmessage = ({data}) => {
      if (data.bye) {
        ports.delete(port);
        return;
      }
      ports.add(port);
      if (data.token === current.token) {
        port.postMessage(current.state);
        return;
      }
      current.stop?.abort();
      const stop = new AbortController();
      current = {token: data.token, stop, state: {connected: false}};
      follow(data.token, stop.signal, (message) => {
        if (!stop.signal.aborted) tell(message);
      });
    };
  };
}

if (typeof SharedWorkerGlobalScope !== 'undefined' && self instanceof SharedWorkerGlobalScope) serveTabs();
