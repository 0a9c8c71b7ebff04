#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "infer/generator.h"

namespace nmoe::cli {

void generate_command(const GenerateArguments& arguments) {
  Generator generator(arguments.checkpoint, arguments.threads);
  fmt::print("{}", arguments.prompt);
  generator.generate(
      {.prompt = arguments.prompt,
       .max_tokens = arguments.max_tokens,
       .sampling = {.temperature = arguments.temperature, .top_p = arguments.top_p, .seed = arguments.seed}},
      [](std::string_view piece) {
        fmt::print("{}", piece);
        std::fflush(stdout);
      });
  fmt::print("\n");
}

}  // namespace nmoe::cli
