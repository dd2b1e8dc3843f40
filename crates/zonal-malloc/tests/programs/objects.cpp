// Operators new and delete, containers, and the exception when memory is short ("full" as argument).
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>
#include "checks.h"

struct alignas(256) Wide {
	char bytes[1000];
};

static int handled;

static void handler()
{
	if (++handled == 3)
		std::set_new_handler(nullptr);
}

static void check_operators()
{
	std::size_t inside = 0;
	for (int round = 0; round < 10000; round++) {
		Wide *wide = new Wide;
		Wide *array = new Wide[3];
		CHECK(reinterpret_cast<std::uintptr_t>(wide) % 256 == 0);
		CHECK(reinterpret_cast<std::uintptr_t>(array) % 256 == 0);
		char *plain = new (std::nothrow) char[1 + round];
		std::memset(plain, 1, 1 + round);
		inside += node_of(plain) >= 0;
		CHECK(node_of(array) >= 0);
		delete wide;
		delete[] array;
		delete[] plain;
	}
	CHECK(inside > 8000);
	std::map<int, std::string> texts;
	for (int key = 0; key < 20000; key++)
		texts[key * 7919 % 20011] = std::string(key % 300, 'x');
	std::size_t length = 0;
	for (auto &entry : texts)
		length += entry.second.size();
	CHECK(texts.size() == 20000 && length == 2980000);
	CHECK(node_of(texts.rbegin()->second.data()) >= 0 || texts.rbegin()->second.size() < 16);
}

// Fills the pool of 64 MiB, and frees it all.
static void check_full()
{
	std::vector<std::vector<char>> blocks;
	bool thrown = false;
	std::set_new_handler(handler);
	try {
		while (blocks.size() < 1000)
			blocks.emplace_back(1 << 20);
	} catch (const std::bad_alloc &) {
		thrown = true;
	}
	CHECK(thrown && handled == 3 && blocks.size() > 30 && blocks.size() < 64);
	CHECK(new (std::nothrow) char[std::size_t(1) << 40] == nullptr);
	blocks.clear();
	blocks.emplace_back(1 << 20);
	CHECK(node_of(blocks[0].data()) >= 0);
}

int main(int count, char **)
{
	if (count > 1)
		check_full();
	else
		check_operators();
	return finish();
}
