// Uses the interface for C++.

#include <cstdio>
#include <cstring>

#include "zonal.hpp"

static int failures;

static void check(bool fine, const char *what) {
  if (!fine) {
    std::printf("%s\n", what);
    failures++;
  }
}

int main() {
  zonal_pool_options options = zonal_pool_options();
  options.struct_size = sizeof(options);
  options.size = 64 << 20;
  options.fake_nodes = 2;
  zonal::pool pool(options);
  {
    zonal::block first = pool.alloc(10000);
    std::memset(first.data(), 1, first.size());
    check(first.size() == 12288, "the size is whole pages");
    zonal::block moved = std::move(first);
    check(first.data() == nullptr && moved.data() != nullptr, "a block can be moved");
    zonal::block on_one = pool.alloc(4096, zonal::placement::bind({1}), ZONAL_REQUEST_ZEROED);
    check(on_one.node() == 1, "the block is on node 1");
    moved = std::move(on_one);
    check(pool.accounting().allocated == 1, "the first block was freed by the assignment");
    check(on_one.data() == nullptr && on_one.size() == 0, "nothing is left in a block that was moved");
    try {
      pool.close();
      check(false, "a pool with blocks is not closed");
    } catch (const zonal::error &error) {
      check(error.status() == ZONAL_BUSY, "the error has the status");
    }
    zonal_block raw = pool.alloc(4096).release();
    zonal::check(zonal_free(pool.handle(), raw.address, raw.bytes));
  }
  check(pool.accounting().allocated == 0, "blocks free themselves");
  try {
    zonal::pool too_large(std::uint64_t(1) << 60);
    check(false, "a pool that is too large is not built");
  } catch (const zonal::error &error) {
    check(std::strstr(error.what(), "available") != nullptr, "the error says why");
  }
  zonal::pool other = std::move(pool);
  other.close();
  std::printf("%d failures\n", failures);
  return failures != 0;
}
