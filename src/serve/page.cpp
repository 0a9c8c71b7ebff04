#include "serve/page.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

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

std::string decompressed(const File& file) {
  uint32_t size = 0;  // the last four bytes of a gzip member, little-endian (RFC 1952)
  std::memcpy(&size, file.end - sizeof(size), sizeof(size));
  std::string text(size, '\0');
  z_stream stream{};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(file.begin));
  stream.avail_in = static_cast<uInt>(file.end - file.begin);
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = size;
  constexpr int kGzipOnly = 16;  // see inflateInit2
  NMOE_CHECK(inflateInit2(&stream, MAX_WBITS + kGzipOnly) == Z_OK, "inflateInit2");
  const int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  NMOE_CHECK(result == Z_STREAM_END && stream.avail_out == 0, "{}: {}", file.name, result);
  return text;
}

constexpr std::string_view kBlanks = " \t";

// How much a client wants a coding, from Accept-Encoding (RFC 9110, 12.5.3): 0 to 1; below 0 where it does not say.
double weight_of(std::string_view coding, std::string_view accept_encoding) {
  double weight = -1.0;
  while (!accept_encoding.empty()) {
    const size_t comma = std::min(accept_encoding.find(','), accept_encoding.size());
    const std::string_view entry = accept_encoding.substr(0, comma);
    accept_encoding.remove_prefix(std::min(comma + 1, accept_encoding.size()));
    const size_t semicolon = std::min(entry.find(';'), entry.size());
    std::string name(trimmed(entry.substr(0, semicolon), kBlanks));
    std::ranges::transform(name, name.begin(),
                           [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (name.starts_with("x-")) name.erase(0, 2);  // x-gzip is gzip's older name
    if (name != coding && (name != "*" || weight >= 0.0)) continue;
    double given = 1.0;
    const std::string_view parameter = trimmed(entry.substr(std::min(semicolon + 1, entry.size())), kBlanks);
    if (parameter.starts_with("q=") || parameter.starts_with("Q=")) {
      std::from_chars(parameter.data() + 2, parameter.data() + parameter.size(), given);
    }
    weight = given;
    if (name == coding) break;
  }
  return weight;
}

}  // namespace

bool accepts_gzip(std::string_view accept_encoding) {
  const double gzip = weight_of("gzip", accept_encoding);
  return gzip > 0.0 && gzip >= weight_of("identity", accept_encoding);
}

std::optional<HttpReply> page_file(std::string_view name, const HttpRequest& request) {
  const File* const file = std::ranges::find(kFiles, name, &File::name);
  if (file == std::end(kFiles)) return std::nullopt;
  const bool compressed = accepts_gzip(request.header("Accept-Encoding"));
  HttpReply reply{
      .status = 200,
      .type = std::string(file->type),
      .body = compressed ? std::string(file->begin, file->end) : decompressed(*file),
      .headers = {{"Vary", "Accept-Encoding"},
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
  if (compressed) reply.headers.emplace_back("Content-Encoding", "gzip");
  return reply;
}

}  // namespace nmoe
