/// The interface of zonal for C++: pools, blocks, policies and registrations that free themselves. Needs C++11.
///
/// Functions that fail throw zonal::error. Destroy a pool after its blocks: a pool with blocks stays open for good when its
/// object is destroyed. Destroy a registration before the object that it calls. The progress callback of a pool must not throw.
/// Functions of zonal.h that are not wrapped here take pool::handle().

#ifndef ZONAL_HPP
#define ZONAL_HPP

#include <cstdint>
#include <exception>
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
  std::uint64_t frame() const noexcept { return block_.frame; }

  /// Splits the block into pieces of piece_bytes, and gives it up. piece_bytes must be a power of two, and divide both the size
  /// and the address.
  std::vector<block> split(std::size_t piece_bytes) {
    if (piece_bytes == 0 || block_.bytes % piece_bytes != 0 ||
        reinterpret_cast<std::uintptr_t>(block_.address) % piece_bytes != 0)
      throw std::invalid_argument("the block does not consist of whole, aligned pieces of this size");
    std::vector<block> pieces;
    pieces.reserve(block_.bytes / piece_bytes);
    check(zonal_split(pool_, block_.address, block_.bytes, piece_bytes));
    const zonal_block whole = release();
    for (std::size_t at = 0; at < whole.bytes; at += piece_bytes) {
      zonal_block piece = whole;
      piece.address = static_cast<char *>(whole.address) + at;
      piece.bytes = piece_bytes;
      zonal_location place = zonal_location();
      place.struct_size = sizeof(place);
      if (zonal_pool_locate(pool_, piece.address, &place) == ZONAL_OK)
        piece.frame = place.frame;
      pieces.emplace_back(pool_, piece);
    }
    return pieces;
  }

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

/// A policy of several requests, which is destroyed with the object. Interleaving needs one.
class policy {
public:
  policy(zonal_pool pool, std::uint32_t kind, const std::vector<std::uint16_t> &nodes,
         const std::vector<std::uint8_t> &weights = {}) {
    if (!weights.empty() && weights.size() != nodes.size())
      throw std::invalid_argument("there must be a weight for each node");
    zonal_policy_options options = zonal_policy_options();
    options.struct_size = sizeof(options);
    options.policy = kind;
    options.nodes = nodes.data();
    options.nodes_len = nodes.size();
    options.weights = weights.empty() ? nullptr : weights.data();
    check(zonal_policy_create(pool, &options, &policy_));
  }
  policy(policy &&other) noexcept : policy_(other.policy_) { other.policy_.id = 0; }
  policy &operator=(policy &&other) noexcept {
    policy moved(std::move(other));
    std::swap(policy_, moved.policy_);
    return *this;
  }
  policy(const policy &) = delete;
  policy &operator=(const policy &) = delete;
  ~policy() {
    // It may have been destroyed with its pool.
    if (policy_.id)
      zonal_policy_destroy(policy_);
  }

  zonal_policy handle() const noexcept { return policy_; }

private:
  zonal_policy policy_ = zonal_policy();
};

/// A registered reclaimer, callback or publication, which ends with the object. The destructor waits until no thread runs it,
/// so a callback must not destroy a registration: the program is terminated then.
class registration {
public:
  explicit registration(zonal_registration registered) noexcept : registered_(registered) {}
  registration(registration &&other) noexcept : registered_(other.registered_) { other.registered_.id = 0; }
  registration &operator=(registration &&other) noexcept {
    registration moved(std::move(other));
    std::swap(registered_, moved.registered_);
    return *this;
  }
  registration(const registration &) = delete;
  registration &operator=(const registration &) = delete;
  ~registration() {
    // It may have ended with its pool. If it cannot end, its object would be called after its end.
    if (registered_.id && zonal_unregister(registered_) == ZONAL_BUSY)
      std::terminate();
  }

private:
  zonal_registration registered_;
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

  /// Joins the pool that another process shares at a path.
  static pool join(const std::string &path) {
    pool joined;
    check(zonal_pool_join(path.c_str(), &joined.pool_));
    return joined;
  }

  /// Joins the pool whose file a descriptor of shared_fd() has, which this process has inherited or received.
  static pool join_fd(int fd) {
    pool joined;
    check(zonal_pool_join_fd(fd, &joined.pool_));
    return joined;
  }

  /// Joins the pool at a path under a name, with which blocks outlive the process.
  static pool join_as(const std::string &path, const std::string &name) {
    pool joined;
    check(zonal_pool_join_as(path.c_str(), name.c_str(), &joined.pool_));
    return joined;
  }

  /// Joins the pool of a descriptor under a name, with which blocks outlive the process.
  static pool join_fd_as(int fd, const std::string &name) {
    pool joined;
    check(zonal_pool_join_fd_as(fd, name.c_str(), &joined.pool_));
    return joined;
  }

  /// Gives a block of a shared pool a name; this process becomes the holder of the block.
  void set_root(const std::string &name, std::uint64_t frame, std::size_t bytes) {
    check(zonal_pool_set_root(pool_, name.c_str(), frame, bytes));
  }

  void remove_root(const std::string &name) { check(zonal_pool_set_root(pool_, name.c_str(), 0, 0)); }

  /// Returns where the block of a root is, with 0 bytes if there is no such root.
  zonal_block root(const std::string &name) const {
    zonal_block found = zonal_block();
    found.struct_size = sizeof(found);
    check(zonal_pool_root(pool_, name.c_str(), &found));
    return found;
  }

  /// Returns the blocks that this process holds in a shared pool, those of the processes that had its name included.
  std::vector<zonal_block> held() const {
    std::vector<zonal_block> found;
    std::size_t count = 0;
    auto note = [](void *to, const zonal_block *) { ++*static_cast<std::size_t *>(to); };
    check(zonal_pool_for_each_held(pool_, note, &count));
    found.reserve(count);
    // No exception may leave a callback, so it adds only what there is room for.
    auto add = [](void *to, const zonal_block *one) {
      auto &blocks = *static_cast<std::vector<zonal_block> *>(to);
      if (blocks.size() < blocks.capacity())
        blocks.push_back(*one);
    };
    check(zonal_pool_for_each_held(pool_, add, &found));
    return found;
  }

  /// Frees what is kept for a process of this name that has ended; returns how many pages.
  std::uint64_t discard(const std::string &name) {
    std::uint64_t pages = 0;
    check(zonal_pool_discard(pool_, name.c_str(), &pages));
    return pages;
  }

  /// Returns the descriptor of a shared pool's file, or -1. The pool owns it.
  int shared_fd() const {
    std::int32_t fd = -1;
    check(zonal_pool_shared_fd(pool_, &fd));
    return fd;
  }

  /// Takes over a block that another process in a shared pool has allocated, and that process then releases: block::release().
  block take_over(std::uint64_t frame, std::size_t bytes) {
    zonal_block found = zonal_block();
    found.struct_size = sizeof(found);
    check(zonal_pool_take_over(pool_, frame, bytes, &found));
    return block(pool_, found);
  }

  /// Returns the processes that take part in a shared pool, with what each holds.
  std::vector<zonal_owner> owners() const {
    std::vector<zonal_owner> found;
    std::size_t count = 0;
    check(zonal_pool_owners(pool_, &count));
    for (std::size_t at = 0; at < count; at++) {
      zonal_owner owner = zonal_owner();
      owner.struct_size = sizeof(owner);
      if (zonal_pool_owner(pool_, at, &owner) == ZONAL_OK) // else a process has left meanwhile
        found.push_back(owner);
    }
    return found;
  }

  block alloc(std::size_t bytes, const placement &where = placement::local(), std::uint32_t flags = 0) {
    zonal_request request = zonal_request();
    request.bytes = bytes;
    request.flags = flags;
    request.policy = where.policy;
    request.nodes = where.nodes.data();
    request.nodes_len = where.nodes.size();
    return alloc(request);
  }

  block alloc(std::size_t bytes, const policy &where, std::uint32_t flags = 0) {
    if (!where.handle().id)
      throw std::invalid_argument("the policy has been moved to another object");
    zonal_request request = zonal_request();
    request.bytes = bytes;
    request.flags = flags;
    request.policy_handle = where.handle();
    return alloc(request);
  }

  /// Allocates the block of a request, whose struct_size need not be set.
  block alloc(zonal_request request) {
    request.struct_size = sizeof(request);
    zonal_block found = zonal_block();
    found.struct_size = sizeof(found);
    check(zonal_alloc(pool_, &request, &found));
    return block(pool_, found);
  }

  /// Returns the steps that a request would take now, a line for each.
  std::string explain(zonal_request request) const {
    request.struct_size = sizeof(request);
    return text([&](char *buffer, std::size_t len, std::size_t *needed) {
      return zonal_explain(pool_, &request, buffer, len, needed);
    });
  }

  /// Returns the state of the pool as text in one of the formats ZONAL_SNAPSHOT_*.
  std::string snapshot(std::uint32_t format = ZONAL_SNAPSHOT_JSON) const {
    return text([&](char *buffer, std::size_t len, std::size_t *needed) {
      return zonal_pool_snapshot(pool_, format, buffer, len, needed);
    });
  }

  /// Returns the warnings of building the pool, a line for each.
  std::string warnings() const {
    return text([&](char *buffer, std::size_t len, std::size_t *needed) {
      return zonal_pool_warnings(pool_, buffer, len, needed);
    });
  }

  std::vector<zonal_zone> zones() const {
    std::size_t count = 0;
    check(zonal_pool_zones(pool_, &count));
    std::vector<zonal_zone> found(count);
    for (std::size_t at = 0; at < count; at++) {
      found[at].struct_size = sizeof(zonal_zone);
      check(zonal_pool_zone(pool_, at, &found[at]));
    }
    return found;
  }

  zonal_location locate(const void *address) const {
    zonal_location found = zonal_location();
    found.struct_size = sizeof(found);
    check(zonal_pool_locate(pool_, address, &found));
    return found;
  }

  zonal_residency residency(std::uint16_t node) const {
    zonal_residency found = zonal_residency();
    found.struct_size = sizeof(found);
    check(zonal_pool_residency(pool_, node, &found));
    return found;
  }

  /// Registers an object as reclaimer. Its functions count and reclaim take a const zonal_reclaim_request & and return a number
  /// of pages; one that throws counts as having freed none.
  template <class Reclaimer> registration register_reclaimer(Reclaimer &object) {
    zonal_reclaimer functions = zonal_reclaimer();
    functions.struct_size = sizeof(functions);
    functions.context = &object;
    functions.count = [](void *context, const zonal_reclaim_request *request) -> std::uint64_t {
      try {
        return static_cast<Reclaimer *>(context)->count(*request);
      } catch (...) {
        return 0;
      }
    };
    functions.reclaim = [](void *context, const zonal_reclaim_request *request) -> std::uint64_t {
      try {
        return static_cast<Reclaimer *>(context)->reclaim(*request);
      } catch (...) {
        return 0;
      }
    };
    zonal_registration registered;
    check(zonal_reclaimer_register(pool_, &functions, &registered));
    return registration(registered);
  }

  /// Registers a function object for events of memory pressure. It takes a const zonal_pressure_event &; exceptions are ignored.
  template <class Callback> registration on_pressure(Callback &callback) {
    zonal_registration registered;
    const zonal_on_pressure function = [](void *context, const zonal_pressure_event *event) {
      try {
        (*static_cast<Callback *>(context))(*event);
      } catch (...) {
      }
    };
    check(zonal_pressure_register(pool_, function, &callback, &registered));
    return registration(registered);
  }

  /// Publishes the pool on a Unix socket for tools of this user.
  registration publish(const std::string &path) {
    zonal_registration registered;
    check(zonal_pool_publish(pool_, path.c_str(), &registered));
    return registration(registered);
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
  pool() noexcept {}

  /// Returns the whole text that a function writes.
  template <class Write> static std::string text(Write write) {
    std::string found(255, '\0');
    for (;;) {
      std::size_t needed = 0;
      check(write(&found[0], found.size() + 1, &needed));
      const bool is_whole = needed <= found.size();
      found.resize(needed);
      if (is_whole)
        return found;
    }
  }

  zonal_pool pool_ = zonal_pool();
};

} // namespace zonal

#endif
