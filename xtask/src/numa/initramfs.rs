//! The initial file system of a guest: an archive in the kernel's own format, created in memory.
//!
//! A program is added together with its loader and shared libraries. Source: the kernel's documentation of
//! `initramfs`, buffer format "newc".

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::Endianness;
use object::elf::{DT_NEEDED, DT_STRSZ, DT_STRTAB, DynamicTag, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};

const FILE: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;
const TRAILER: &str = "TRAILER!!!";
/// Folder of libraries in the guest, which every loader searches.
const LIBRARIES: &str = "lib";

/// Files of a guest by their paths without a leading slash.
#[derive(Default)]
pub(crate) struct Initramfs {
    files: BTreeMap<String, Vec<u8>>,
    folders: BTreeMap<String, ()>,
}

impl Initramfs {
    /// Adds an executable file.
    pub(crate) fn add(&mut self, path: &str, content: Vec<u8>) {
        for (at, _) in path.match_indices('/') {
            self.folders.insert(path[..at].to_owned(), ());
        }
        self.files.insert(path.to_owned(), content);
    }

    /// Adds an empty folder.
    pub(crate) fn add_folder(&mut self, path: &str) {
        self.add(&format!("{path}/"), Vec::new());
        self.files.remove(&format!("{path}/"));
    }

    /// Adds a program or library without its debug information, and the libraries with which it is linked. These are
    /// searched for in the folders of `tools`.
    pub(super) fn add_program(&mut self, path: &str, file: &Path, tools: &Tools) -> Result<(), String> {
        let data = tools.stripped(file)?;
        let (loader, libraries) = needed(&data).map_err(|why| format!("{}: {why}", file.display()))?;
        self.add(path, data);
        let loader = loader.map(|loader| loader.trim_start_matches('/').to_owned());
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        if let Some(loader) = loader.filter(|loader| !self.files.contains_key(loader)) {
            let found = tools.library(&name(&loader))?;
            self.add_program(&loader, &found, tools)?;
        }
        for library in libraries {
            let path = format!("{LIBRARIES}/{library}");
            // The loader is also listed as a library, but it is already present under its own path.
            let is_there = self.files.keys().any(|known| *known == path || name(known) == library);
            if !is_there {
                let found = tools.library(&library)?;
                self.add_program(&path, &found, tools)?;
            }
        }
        Ok(())
    }

    /// Returns the archive.
    pub(crate) fn archive(&self) -> Vec<u8> {
        let mut archive = Vec::new();
        let mut number = 1;
        for folder in self.folders.keys() {
            entry(&mut archive, number, folder, FOLDER, &[]);
            number += 1;
        }
        for (path, content) in &self.files {
            entry(&mut archive, number, path, FILE, content);
            number += 1;
        }
        entry(&mut archive, 0, TRAILER, 0, &[]);
        archive
    }
}

/// Appends an entry: a header of hexadecimal fields, the name, and the content, each padded to four bytes.
fn entry(archive: &mut Vec<u8>, number: u32, path: &str, mode: u32, content: &[u8]) {
    let links = 1 + u32::from(mode == FOLDER);
    let (bytes, name_bytes) = (content.len() as u32, path.len() as u32 + 1);
    archive.extend(b"070701");
    for field in [number, mode, 0, 0, links, 0, bytes, 0, 0, 0, 0, name_bytes, 0] {
        archive.extend(format!("{field:08X}").bytes());
    }
    archive.extend(path.bytes().chain([0]));
    pad(archive);
    archive.extend(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

/// The tools and folders of one architecture.
pub(super) struct Tools {
    /// The program that removes debug information.
    pub(super) strip: &'static str,
    /// Folders of shared libraries and the loader on this machine.
    pub(super) libraries: &'static [&'static str],
    /// A folder for intermediate files.
    pub(super) scratch: PathBuf,
}

impl Tools {
    fn library(&self, name: &str) -> Result<PathBuf, String> {
        let mut places = self.libraries.iter().map(|folder| Path::new(folder).join(name));
        places
            .find(|path| path.exists())
            .ok_or_else(|| format!("{name} is in none of {}", self.libraries.join(", ")))
    }

    /// Reads a file without its debug information. Returns it unchanged if nothing can be removed.
    fn stripped(&self, file: &Path) -> Result<Vec<u8>, String> {
        let to = self.scratch.join("stripped");
        let done = Command::new(self.strip).args(["--strip-debug", "-o"]).arg(&to).arg(file).status();
        let from = if done.is_ok_and(|status| status.success()) { &to } else { file };
        let data = std::fs::read(from).map_err(|error| format!("{}: {error}", from.display()));
        std::fs::remove_file(&to).ok(); // the file exists only if something was removed
        data
    }
}

/// Returns the loader of a program, if it is linked dynamically, and the libraries that it needs.
pub(super) fn needed(data: &[u8]) -> Result<(Option<String>, Vec<String>), String> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(data).map_err(|error| error.to_string())?;
    let (endian, header): (_, &FileHeader64<Endianness>) = (file.endian(), file.elf_header());
    let headers = header.program_headers(endian, data).map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let interpreter = headers.iter().find(|header| header.p_type(endian) == PT_INTERP);
    let loader = interpreter.and_then(|header| header.data(endian, data).ok()).map(text);
    let dynamic =
        headers.iter().find_map(|header| header.dynamic(endian, data).ok().flatten()).unwrap_or_default();
    let value =
        |tag: DynamicTag| dynamic.iter().find(|one| one.d_tag(endian) == tag).map(|one| one.d_val(endian));
    let Some((start, bytes)) = value(DT_STRTAB).zip(value(DT_STRSZ)) else { return Ok((loader, Vec::new())) };
    let strings =
        headers.iter().find_map(|header| header.data_range(endian, data, start, bytes).ok().flatten());
    let strings = strings.ok_or("its dynamic section names strings that are not there")?;
    let names = dynamic.iter().filter(|one| one.d_tag(endian) == DT_NEEDED);
    let names = names.filter_map(|one| strings.get(one.d_val(endian) as usize..)).map(text);
    Ok((loader, names.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_a_loader_and_a_c_library() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (loader, libraries) = needed(&own).unwrap();
        assert!(loader.unwrap().contains("ld-linux"));
        assert!(libraries.iter().any(|library| library.starts_with("libc.so")), "{libraries:?}");
        assert!(needed(b"no program").is_err());
    }

    #[test]
    fn entries_are_padded_and_folders_come_first() {
        let mut files = Initramfs::default();
        files.add("a/b/c", b"12345".to_vec());
        files.add_folder("empty");
        let archive = files.archive();
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive).into_owned();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing"));
        assert!(at("a/b\0") < at("a/b/c\0"));
        assert!(at("empty") < at("12345") && at("12345") < at(TRAILER));
        assert_eq!(text.matches("070701").count(), 5);
    }
}
