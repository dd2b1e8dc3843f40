//! The texts of the Debian package. Source: Debian Policy Manual, chapters 4 and 5, and the machine-readable format 1.0
//! of `debian/copyright`.

/// Who maintains the package. The address does not exist, because the package is not published.
const MAINTAINER: &str = "The zonal developers <zonal@zonal.invalid>";

/// Returns the control file. `bytes` is the size of all installed files.
pub(super) fn control(version: &str, architecture: &str, depends: &str, bytes: u64) -> String {
    let kib = bytes.div_ceil(1024);
    format!(
        "Package: zonal\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\n\
         Depends: {depends}\n\
         Section: admin\n\
         Priority: optional\n\
         Description: NUMA-aware page-frame allocator: run, explain and measure it\n \
         The command zonal builds pools of this machine's memory, with a zonelist,\n \
         watermarks and per-CPU pagesets on each NUMA node, and runs workloads on them.\n \
         It explains the zones and fallback orders that a kernel sets up on a machine,\n \
         simulates machines with thousands of CPUs, and compares allocators.\n"
    )
}

/// Returns the changelog of the package. `date` has the form of RFC 5322.
pub(super) fn changelog(version: &str, date: &str) -> String {
    format!(
        "zonal ({version}) unstable; urgency=medium\n\n  \
           * Version {version}. CHANGELOG.md in the sources lists its changes.\n\n \
         -- {MAINTAINER}  {date}\n"
    )
}

/// Returns the copyright file. `licence` is the text of the MIT licence, which begins with its title and the
/// copyright.
pub(super) fn copyright(licence: &str) -> String {
    let holder = licence.lines().find_map(|line| line.strip_prefix("Copyright (c) ")).unwrap_or_default();
    let terms: String = licence
        .lines()
        .skip_while(|line| !line.starts_with("Permission"))
        .map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
        .collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: zonal\n\n\
         Files: *\n\
         Copyright: {holder}\n\
         License: Expat or Apache-2.0\n\n\
         License: Expat\n{terms}\n\
         License: Apache-2.0\n \
         On Debian systems, the text of the Apache License, Version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_kib() {
        let sizes = [0, 1, 1024, 1025].map(|bytes| {
            let control = control("1.2.3", "amd64", "libc6 (>= 2.34)", bytes);
            let size = control.lines().find_map(|line| line.strip_prefix("Installed-Size: "));
            size.unwrap().to_owned()
        });
        assert_eq!(sizes, ["0", "1", "1", "2"]);
    }

    #[test]
    fn every_line_is_a_field_or_continues_one() {
        let text = control("1.2.3", "amd64", "libc6 (>= 2.34)", 1)
            + &copyright("MIT\n\nCopyright (c) 1 A\n\nPermission\n\nx");
        for line in text.lines().filter(|line| !line.is_empty()) {
            assert!(line.starts_with(' ') || line.contains(": "), "{line}");
        }
        assert!(
            text.contains("\nDepends: libc6 (>= 2.34)\n") && text.contains("\n Permission\n .\n x\n"),
            "{text}"
        );
        assert!(text.contains("\nCopyright: 1 A\n"), "{text}");
    }

    #[test]
    fn changelogs_end_with_maintainer_and_date() {
        let text = changelog("1.2.3", "Thu, 01 Jan 1970 00:00:00 +0000");
        assert!(text.starts_with("zonal (1.2.3) unstable; urgency=medium\n\n  * "), "{text}");
        assert!(
            text.ends_with("invalid>  Thu, 01 Jan 1970 00:00:00 +0000\n") && text.contains("\n -- The"),
            "{text}"
        );
    }
}
