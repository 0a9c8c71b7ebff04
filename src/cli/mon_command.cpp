#include <chrono>
#include <cstdlib>

#include "base/signals.h"
#include "cli/commands.h"
#include "mon/monitor.h"
#include "mon/terminal.h"
#include "track/metrics.h"

namespace nmoe::cli {

void mon_command(const MonArguments& arguments) {
  constexpr std::chrono::milliseconds kInterval(500);
  mon::Monitor monitor(arguments.dir, arguments.run);
  const StopSignal stop;  // before the terminal, which otherwise would take the signals
  const char* no_colour = std::getenv("NO_COLOR");
  const bool colour = !arguments.no_colour && (no_colour == nullptr || *no_colour == 0);
  mon::Terminal terminal(colour);
  // A screen first, then what there is to read, piece by piece with the keys in between.
  for (bool more = true; !monitor.done() && !stop.requested(); more = monitor.tick(now_ms())) {
    terminal.show(monitor.draw(terminal.width(), terminal.height()));
    monitor.press(terminal.read_key(more ? std::chrono::milliseconds(0) : kInterval));
  }
}

}  // namespace nmoe::cli
