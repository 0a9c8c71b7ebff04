#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>

#include "serve/page.h"

namespace nmoe {
namespace {

HttpReply page(const std::string& name, const std::string& accept_encoding) {
  HttpRequest request;
  if (!accept_encoding.empty()) request.headers.emplace_back("Accept-Encoding", accept_encoding);
  return page_file(name, request).value();
}

std::string header_of(const HttpReply& reply, std::string_view name) {
  const auto found =
      std::ranges::find(reply.headers, name, [](const auto& header) -> const std::string& { return header.first; });
  return found == reply.headers.end() ? "" : found->second;
}

TEST(PageFile, IsCompressedForThoseWhoSayThatTheyReadThat) {
  for (const char* takes : {"gzip", "gzip, deflate, br, zstd", "br;q=1.0, GZIP;q=0.8", "x-gzip", "*",
                            "identity;q=0.5, gzip", "deflate , gzip ; q=0.001"}) {
    EXPECT_TRUE(accepts_gzip(takes)) << takes;
  }
  for (const char* does_not : {"", "identity", "br", "gzip;q=0", "gzip;q=0.0, *", "*;q=0", "identity, gzip;q=0.5",
                               "gzipped", "deflate, *;q=0"}) {
    EXPECT_FALSE(accepts_gzip(does_not)) << does_not;
  }
}

TEST(PageFile, IsTheSameTextEitherWay) {
  for (const char* name : {"chat.html", "viz.html", "uplot.js"}) {
    const HttpReply plain = page(name, ""), compressed = page(name, "gzip, br");
    EXPECT_EQ(header_of(plain, "Content-Encoding"), "");
    EXPECT_EQ(header_of(compressed, "Content-Encoding"), "gzip");
    for (const HttpReply& reply : {plain, compressed}) EXPECT_EQ(header_of(reply, "Vary"), "Accept-Encoding");
    EXPECT_LT(compressed.body.size(), plain.body.size());
    std::string text(plain.body.size() + 1, '\0');
    z_stream stream{};
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.body.data()));
    stream.avail_in = static_cast<uInt>(compressed.body.size());
    stream.next_out = reinterpret_cast<Bytef*>(text.data());
    stream.avail_out = static_cast<uInt>(text.size());
    ASSERT_EQ(inflateInit2(&stream, MAX_WBITS + 16), Z_OK);
    EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    text.resize(stream.total_out);
    inflateEnd(&stream);
    EXPECT_EQ(text, plain.body) << name;
  }
  EXPECT_TRUE(page("viz.html", "").body.starts_with("<!"));
}

}  // namespace
}  // namespace nmoe
