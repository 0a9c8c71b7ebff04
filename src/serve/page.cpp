#include "serve/page.h"

#include <algorithm>
#include <iterator>

// Symbols are made of the files' names by the linker (CMakeLists.txt).
#define NMOE_PAGE_FILES(X)                         \
  X("viz.html", html, viz_html)                    \
  X("style.css", css, style_css)                   \
  X("uplot.css", css, uplot_css)                   \
  X("uplot.js", javascript, uplot_js)              \
  X("uplot_license.txt", plain, uplot_license_txt) \
  X("viz.js", javascript, viz_js)                  \
  X("api.js", javascript, api_js)                  \
  X("events.js", javascript, events_js)            \
  X("state.js", javascript, state_js)              \
  X("dom.js", javascript, dom_js)                  \
  X("runs.js", javascript, runs_js)                \
  X("chart.js", javascript, chart_js)              \
  X("charts.js", javascript, charts_js)            \
  X("marks.js", javascript, marks_js)              \
  X("checkpoints.js", javascript, checkpoints_js)  \
  X("alerts.js", javascript, alerts_js)            \
  X("memory.js", javascript, memory_js)            \
  X("compare.js", javascript, compare_js)          \
  X("router.js", javascript, router_js)            \
  X("messages.js", javascript, messages_js)        \
  X("theme.js", javascript, theme_js)              \
  X("chat.html", html, chat_html)                  \
  X("chat.js", javascript, chat_js)

#define NMOE_DECLARE(name, type, symbol)                                   \
  extern const char symbol##_begin[] __asm__("_binary_" #symbol "_start"); \
  extern const char symbol##_end[] __asm__("_binary_" #symbol "_end");
NMOE_PAGE_FILES(NMOE_DECLARE)
#undef NMOE_DECLARE

namespace nmoe {
namespace {

struct File {
  std::string_view name;
  std::string_view type;
  const char* begin;  // gzip
  const char* end;
};

#define NMOE_ROW(name, type, symbol) {name, "text/" #type "; charset=utf-8", symbol##_begin, symbol##_end},
constexpr File kFiles[] = {NMOE_PAGE_FILES(NMOE_ROW)};
#undef NMOE_ROW

}  // namespace

std::optional<HttpReply> page_file(std::string_view name) {
  const File* const file = std::ranges::find(kFiles, name, &File::name);
  if (file == std::end(kFiles)) return std::nullopt;
  return HttpReply{
      .status = 200,
      .type = std::string(file->type),
      .body = std::string(file->begin, file->end),
      .headers = {{"Content-Encoding", "gzip"},
                  {"Content-Security-Policy",
                   "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
                   "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                  {"X-Content-Type-Options", "nosniff"},
                  {"X-Frame-Options", "DENY"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cross-Origin-Opener-Policy", "same-origin"},
                  {"Cross-Origin-Resource-Policy", "same-origin"},
                  {"Cache-Control", "no-cache"}},
      .note = {}};
}

}  // namespace nmoe
