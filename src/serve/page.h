// The pages that servers show, as the program carries them: src/serve/page and uPlot (scripts/setup.sh), compressed.
#pragma once

#include <optional>
#include <string_view>

#include "serve/http_server.h"

namespace nmoe {

// The file of this name, such as "viz.html", with headers by which a browser loads nothing from elsewhere, runs no
// script but those that are here, and shows it in nobody's frame. Nothing where there is none.
std::optional<HttpReply> page_file(std::string_view name);

}  // namespace nmoe
