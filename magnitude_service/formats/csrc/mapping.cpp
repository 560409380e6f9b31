#include "mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace magnitude::formats {
namespace {

std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t whole_pages(std::size_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

}  // namespace

Mapping::~Mapping() {
    if (slot_) guard::unwatch(*slot_);
    if (data_ != nullptr) munmap(data_, mapped_bytes_);
}

int Mapping::map_file(int descriptor, std::size_t bytes) {
    void* const address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) return errno;
    data_ = static_cast<std::uint8_t*>(address);
    bytes_ = bytes;
    mapped_bytes_ = whole_pages(bytes);
    advise_large_pages();
    slot_ = guard::watch(data_, mapped_bytes_);
    return slot_ ? 0 : EMFILE;
}

int Mapping::allocate(std::size_t bytes) {
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return errno;
    data_ = static_cast<std::uint8_t*>(address);
    bytes_ = bytes;
    mapped_bytes_ = whole_pages(bytes);
    advise_large_pages();
    return 0;
}

// Only a hint: small pages are right too. For a file it decides how the kernel reads it: in pieces of 2 MiB that one entry
// of the page table covers, where the file system can. What is cached in small pages stays so.
void Mapping::advise_large_pages() const {
#ifdef MADV_HUGEPAGE
    madvise(data_, mapped_bytes_, MADV_HUGEPAGE);
#endif
}

int Mapping::seal() { return mprotect(data_, mapped_bytes_, PROT_READ) == 0 ? 0 : errno; }

int Mapping::lock() { return mlock(data_, bytes_) == 0 ? 0 : errno; }

int Mapping::trim(std::size_t bytes) {
    const std::size_t kept = whole_pages(bytes);
    if (bytes > bytes_) return EINVAL;
    bytes_ = bytes;
    if (kept == mapped_bytes_) return 0;
    if (slot_) guard::shrink(*slot_, kept);
    if (munmap(data_ + kept, mapped_bytes_ - kept) != 0) return errno;
    mapped_bytes_ = kept;
    return 0;
}

void Mapping::populate() const {
    // A read of each page, and not MAP_POPULATE: the size to read is known only when the header has been parsed, and a
    // file that shrinks meanwhile is the guard's business.
    madvise(data_, mapped_bytes_, MADV_WILLNEED);
    const volatile std::uint8_t* const pages = data_;
    const std::size_t step = page_size();
    for (std::size_t offset = 0; offset < bytes_; offset += step) (void)pages[offset];
}

}  // namespace magnitude::formats
