//! Queries the mappings of this process.

/// Whether an address is mapped.
pub(crate) fn is_mapped(address: usize) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let parse = |text| usize::from_str_radix(text, 16).unwrap();
        (parse(from)..parse(to)).contains(&address)
    })
}
