#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/authentication.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/commands.h"
#include "viz/viz_server.h"

namespace nmoe::cli {

void viz_command(const VizArguments& arguments) {
  VizOptions options;
  options.run_dir = arguments.dir;
  options.host = arguments.host;
  options.port = arguments.port;
  options.allowed_hosts = arguments.allowed_hosts;
  options.cache_bytes = parse_bytes(arguments.memory, "--memory");
  for (const char byte : random_bytes(16)) options.token += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  const StopSignal stop;
  VizServer server(options);
  server.start();
  const bool v6 = options.host.find(':') != std::string::npos;
  // Behind the '#': so it reaches no server's log and no other page.
  say("showing {} at http://{}{}{}:{}/#token={}\n", arguments.dir, v6 ? "[" : "", options.host, v6 ? "]" : "",
      server.port(), options.token);
  while (!stop.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  say("stopped by {}\n", stop.name());
}

}  // namespace nmoe::cli
