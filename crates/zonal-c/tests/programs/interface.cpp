// Uses the interface for C++.

#include <cstdio>
#include <cstring>
#include <mutex>

#include "zonal.hpp"

static int failures;

static void check(bool fine, const char *what) {
  if (!fine) {
    std::printf("%s\n", what);
    failures++;
  }
}

/// A cache of blocks, which frees the newest ones when memory is short.
struct cache {
  std::mutex lock;
  std::vector<zonal::block> blocks;
  int calls = 0;

  std::uint64_t count(const zonal_reclaim_request &) {
    std::lock_guard<std::mutex> held(lock);
    return blocks.size();
  }
  std::uint64_t reclaim(const zonal_reclaim_request &request) {
    std::lock_guard<std::mutex> held(lock);
    std::uint64_t freed = 0;
    for (calls++; freed < request.pages && !blocks.empty(); freed++)
      blocks.pop_back();
    if (freed == 0)
      throw std::runtime_error("nothing to free");
    return freed;
  }
};

static void test_more(zonal::pool &pool) {
  {
    zonal::policy turns(pool.handle(), ZONAL_POLICY_INTERLEAVE, {0, 1});
    std::uint16_t first = pool.alloc(4096, turns).node();
    check(pool.alloc(4096, turns).node() != first, "the second block is on the other node");
    zonal::policy weighted(pool.handle(), ZONAL_POLICY_WEIGHTED_INTERLEAVE, {0, 1}, {0, 3});
    turns = std::move(weighted);
    check(pool.alloc(4096, turns).node() == 1, "node 0 has no weight");
    try {
      pool.alloc(4096, weighted);
      check(false, "a policy that was moved is refused");
    } catch (const std::invalid_argument &) {
    }
    zonal_request aligned = zonal_request();
    aligned.bytes = 4096;
    aligned.alignment = 1 << 20;
    check(reinterpret_cast<std::uintptr_t>(pool.alloc(aligned).data()) % (1 << 20) == 0, "the block is aligned");
    check(pool.explain(aligned).find("served by") != std::string::npos, "the request is explained");
  }
  {
    std::vector<zonal::block> pieces = pool.alloc(64 << 10).split(16 << 10);
    check(pieces.size() == 4 && pool.accounting().allocated == 16, "the block has four pieces");
    check(pool.locate(pieces[3].data()).frame == pool.locate(pieces[0].data()).frame + 12, "they follow each other");
  }
  check(pool.accounting().allocated == 0, "pieces free themselves");
  check(pool.snapshot().find("\"zones\"") != std::string::npos, "the snapshot has zones");
  check(pool.snapshot().back() == '}', "the snapshot is whole");
  check(pool.zones().size() == 2 && pool.zones()[1].node == 1, "the pool has two zones");
  check(pool.warnings().size() < 4096, "warnings are short");
  cache cache;
  {
    zonal::registration registered = pool.register_reclaimer(cache);
    zonal_request now = zonal_request();
    now.flags = ZONAL_REQUEST_NO_WAIT;
    try {
      for (;;) {
        zonal::block page = pool.alloc(now);
        std::lock_guard<std::mutex> held(cache.lock);
        cache.blocks.push_back(std::move(page));
      }
    } catch (const zonal::error &error) {
      check(error.status() == ZONAL_OUT_OF_MEMORY, "the pool is full");
    }
    std::vector<zonal::block> more;
    for (int at = 0; at < 1000; at++)
      more.push_back(pool.alloc(4096));
    check(cache.calls > 0, "the cache made room");
  }
  cache.blocks.clear();
  check(pool.accounting().allocated == 0, "all blocks are free again");
  auto ignore = [](const zonal_pressure_event &) {};
  zonal::registration listens = pool.on_pressure(ignore);
  {
    struct cache temporary;
    zonal::registration reclaims = pool.register_reclaimer(temporary);
    listens = std::move(reclaims);
    listens = pool.on_pressure(ignore); // ends the reclaimer, which is destroyed now
  }
  std::uint64_t freed = 1;
  zonal::check(zonal_pool_reclaim(pool.handle(), 0, 100, &freed));
  check(freed == 0, "no reclaimer is left");
}

static void test_shared() {
  zonal_pool_options options = zonal_pool_options();
  options.struct_size = sizeof(options);
  options.size = 64 << 20;
  options.flags = ZONAL_POOL_SHARED_BY_DESCRIPTOR;
  options.processes = 2;
  zonal::pool first(options), second = zonal::pool::join_fd(first.shared_fd());
  check(first.owners().size() == 2 && second.owners()[1].is_this == 1, "both take part");
  zonal::block block = first.alloc(8192);
  {
    zonal::block taken = second.take_over(block.frame(), block.size());
    check(taken.data() != block.data() && taken.frame() == block.frame(), "the block is at another address");
    block.release();
    first.close();
    check(second.accounting().allocated == 2, "the block has another holder");
  }
  check(second.accounting().allocated == 0 && second.owners().size() == 1, "the block was freed once");
  try {
    zonal::pool::join("/nowhere/pool");
    check(false, "a pool that does not exist is not joined");
  } catch (const zonal::error &error) {
    check(error.status() == ZONAL_BUILD_FAILED, "the error has the status");
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
  test_more(pool);
  test_shared();
  zonal::pool other = std::move(pool);
  other.close();
  std::printf("%d failures\n", failures);
  return failures != 0;
}
