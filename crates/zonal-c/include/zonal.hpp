/// The interface of zonal for C++: pools and blocks that free themselves. Needs C++11.
///
/// Functions that fail throw zonal::error. Destroy a pool after its blocks: a pool with blocks stays open for good when its
/// object is destroyed. The progress callback of a pool must not throw.

#ifndef ZONAL_HPP
#define ZONAL_HPP

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "zonal.h"

namespace zonal {

/// A call that failed, with its status and message.
class error : public std::runtime_error {
public:
  explicit error(zonal_status status) : std::runtime_error(zonal_last_error()), status_(status) {}

  zonal_status status() const noexcept { return status_; }

private:
  zonal_status status_;
};

inline void check(zonal_status status) {
  if (status != ZONAL_OK)
    throw error(status);
}

/// A block of memory, which is freed when the object is destroyed.
class block {
public:
  block(zonal_pool pool, const zonal_block &block) noexcept : pool_(pool), block_(block) {}
  block(block &&other) noexcept : pool_(other.pool_), block_(other.release()) {}
  block &operator=(block &&other) noexcept {
    block moved(std::move(other));
    std::swap(pool_, moved.pool_);
    std::swap(block_, moved.block_);
    return *this;
  }
  block(const block &) = delete;
  block &operator=(const block &) = delete;
  ~block() {
    // A refused free changes nothing. It means that the pool was closed before its block.
    if (block_.address)
      zonal_free(pool_, block_.address, block_.bytes);
  }

  void *data() const noexcept { return block_.address; }
  std::size_t size() const noexcept { return block_.bytes; }
  std::uint16_t node() const noexcept { return block_.node; }

  /// Gives up the block, which the caller then frees with zonal_free.
  zonal_block release() noexcept {
    zonal_block given = block_;
    block_.address = nullptr;
    block_.bytes = 0;
    return given;
  }

private:
  zonal_pool pool_;
  zonal_block block_;
};

/// Where a block should be.
struct placement {
  std::uint32_t policy;
  std::vector<std::uint16_t> nodes;

  static placement local() { return {ZONAL_POLICY_LOCAL, {}}; }
  static placement preferred(std::uint16_t node) { return {ZONAL_POLICY_PREFERRED, {node}}; }
  static placement bind(std::vector<std::uint16_t> nodes) { return {ZONAL_POLICY_BIND, std::move(nodes)}; }
};

/// A pool, which is closed when the object is destroyed.
class pool {
public:
  explicit pool(const zonal_pool_options &options) { check(zonal_pool_build(&options, &pool_)); }
  explicit pool(std::uint64_t bytes) {
    zonal_pool_options options = zonal_pool_options();
    options.struct_size = sizeof(options);
    options.size = bytes;
    check(zonal_pool_build(&options, &pool_));
  }
  pool(pool &&other) noexcept : pool_(other.pool_) { other.pool_.id = 0; }
  pool &operator=(pool &&other) noexcept {
    pool moved(std::move(other));
    std::swap(pool_, moved.pool_);
    return *this;
  }
  pool(const pool &) = delete;
  pool &operator=(const pool &) = delete;
  ~pool() {
    // The pool stays open if blocks are allocated, so that they stay valid.
    if (pool_.id)
      zonal_pool_close(pool_, 0);
  }

  block alloc(std::size_t bytes, const placement &where = placement::local(), std::uint32_t flags = 0) {
    zonal_request request = zonal_request();
    request.struct_size = sizeof(request);
    request.bytes = bytes;
    request.flags = flags;
    request.policy = where.policy;
    request.nodes = where.nodes.data();
    request.nodes_len = where.nodes.size();
    zonal_block found = zonal_block();
    found.struct_size = sizeof(found);
    check(zonal_alloc(pool_, &request, &found));
    return block(pool_, found);
  }

  zonal_accounting accounting() const {
    zonal_accounting found = zonal_accounting();
    found.struct_size = sizeof(found);
    check(zonal_pool_accounting(pool_, &found));
    return found;
  }

  /// Closes the pool now. Fails if blocks are allocated.
  void close() {
    check(zonal_pool_close(pool_, 0));
    pool_.id = 0;
  }

  zonal_pool handle() const noexcept { return pool_; }

private:
  zonal_pool pool_ = zonal_pool();
};

} // namespace zonal

#endif
