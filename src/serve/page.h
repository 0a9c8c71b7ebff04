// The pages that servers show, as the program carries them: src/serve/page and uPlot (scripts/setup.sh), compressed.
#pragma once

#include <optional>
#include <string_view>

#include "serve/http_server.h"

namespace nmoe {

// The file of this name, such as "viz.html", with headers by which a browser loads nothing from elsewhere, runs no
// script but those that are here, and shows it in nobody's frame; compressed where the client says that it can read
// that. Nothing where there is none.
std::optional<HttpReply> page_file(std::string_view name, const HttpRequest& request);

// Whether a client with this Accept-Encoding takes gzip, and wants it no less than the text itself. Without one (""),
// as of a client that looks at the page as a file, it does not.
bool accepts_gzip(std::string_view accept_encoding);

}  // namespace nmoe
