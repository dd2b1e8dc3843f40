//! `cargo xtask install-c --prefix DIR` builds the C library and installs it: header, static and shared library, and the
//! files by which pkg-config and CMake find it. `--with malloc` adds the library that replaces `malloc`, and `--with umf` the
//! provider for UMF.
//!
//! The shared library is linked from the static one, with the version of its symbols from `crates/zonal-c/zonal.map`, which
//! also hides all other symbols. Related files: `plan.rs` includes the check, which installs into the target folder and
//! builds programs against the result.

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::steps::{Outcome, Step, build_all, cargo, succeeds, target_folder};
use crate::versions;

/// The crate, relative to the root.
const CRATE: &str = "crates/zonal-c";
/// Libraries that the static library needs.
const LIBRARIES: &str = "-lutil -lrt -lpthread -lm -ldl -lc";

/// A profile of cargo, and the folder of its output.
#[derive(Clone, Copy)]
enum Profile {
    Dev,
    Release,
}

/// What is installed only if it is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extra {
    Malloc,
    Umf,
}

/// Where the library is installed, and with what.
#[derive(PartialEq, Eq, Debug)]
struct Places {
    /// The directory below which the files are used.
    prefix: PathBuf,
    /// The directory of libraries, relative to the prefix.
    libdir: String,
    extras: Vec<Extra>,
    /// A directory in front of the prefix, in which packages are made. It is not part of any installed file.
    staged: Option<PathBuf>,
}

impl Places {
    /// Reads the options of the command. `staged` is the value of the variable `DESTDIR`.
    fn parse(arguments: &[String], staged: Option<PathBuf>) -> Result<Self, String> {
        let usage = "install-c needs --prefix DIR, the directory to install into, and accepts --libdir NAME, its directory \
                     of libraries (lib), --with malloc and --with umf";
        let (mut prefix, mut libdir, mut extras) = (None, "lib".to_owned(), Vec::new());
        for pair in arguments.chunks(2) {
            match pair {
                [option, value] if option == "--prefix" && !value.is_empty() => {
                    prefix = Some(PathBuf::from(value));
                }
                [option, value] if option == "--libdir" && is_within(value) => libdir.clone_from(value),
                [option, value] if option == "--libdir" => {
                    return Err(format!(
                        "--libdir is {value}; it must be a path within the prefix, such as lib64"
                    ));
                }
                [option, value] if option == "--with" => extras.push(match value.as_str() {
                    "malloc" => Extra::Malloc,
                    "umf" => Extra::Umf,
                    _ => return Err(format!("--with is {value}; it must be malloc or umf")),
                }),
                _ => return Err(usage.to_owned()),
            }
        }
        let prefix = prefix.ok_or(usage)?;
        let prefix =
            std::path::absolute(&prefix).map_err(|error| format!("{}: {error}", prefix.display()))?;
        Ok(Self { prefix, libdir, extras, staged })
    }

    /// Returns the directory into which the files of the prefix are written.
    fn target(&self) -> PathBuf {
        let Some(staged) = &self.staged else { return self.prefix.clone() };
        staged.join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix))
    }
}

/// Whether a path consists of plain names.
fn is_within(path: &str) -> bool {
    let is_name = |part| matches!(part, std::path::Component::Normal(_));
    !path.is_empty() && Path::new(path).components().all(is_name)
}

/// Returns the steps of the command.
///
/// # Errors
/// Returns an error if the prefix is missing or an argument is wrong.
pub(crate) fn steps(arguments: &[String]) -> Result<Vec<Step>, String> {
    let staged = std::env::var_os("DESTDIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let places = Places::parse(arguments, staged)?;
    Ok(vec![Step::new("C library", move |root| match install(root, &places, Profile::Release) {
        Ok(files) => {
            files.iter().for_each(|file| println!("{}", file.display()));
            Outcome::Passed
        }
        Err(why) => Outcome::Failed(why),
    })])
}

/// Returns the check of the everyday plan.
pub(crate) fn every_day() -> Step {
    Step::new("C library: installed, and used with pkg-config and CMake", |root| {
        for tool in ["pkg-config", "cmake"] {
            let there =
                Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !there.is_ok_and(|status| status.success()) {
                return Outcome::Skipped(format!("no {tool} (apt-get install {tool})"));
            }
        }
        match check(root) {
            Ok(()) => Outcome::Passed,
            Err(why) => Outcome::Failed(why),
        }
    })
}

/// Installs the library, and returns the installed files.
fn install(root: &Path, places: &Places, profile: Profile) -> Result<Vec<PathBuf>, String> {
    let target = places.target();
    let has = |extra| places.extras.contains(&extra);
    let folder = match profile {
        Profile::Dev => {
            build_all(root).map_err(|_| "the library does not build".to_owned())?;
            "debug"
        }
        Profile::Release => {
            let mut arguments = vec!["build", "-q", "-p", "zonal-c", "--profile", "dist"];
            if has(Extra::Malloc) {
                arguments.extend(["-p", "zonal-malloc"]);
            }
            // With a named target, the library would be in another folder.
            expect(cargo(root, &arguments).env_remove("CARGO_BUILD_TARGET"))?;
            "dist"
        }
    };
    let built = target_folder(root).join(folder);
    let archive = built.join("libzonal_c.a");
    let version = versions::of_workspace(root)?;
    let (lib, include) = (target.join(&places.libdir), target.join("include"));
    let (pkg_config, cmake) = (lib.join("pkgconfig"), lib.join("cmake/zonal"));
    for folder in [&lib, &include, &pkg_config, &cmake] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let shared = format!("libzonal.so.{version}");
    let soname = format!("libzonal.so.{}", compatible(&version));
    replace(&lib.join(&shared), |new| link(root, &archive, new, &soname).and_then(|()| strip(new)))?;
    let mut files = vec![lib.join(&shared)];
    for name in [&soname, "libzonal.so"] {
        let place = lib.join(name);
        replace(&place, |new| symlink(&shared, new).map_err(|error| error.to_string()))?;
        files.push(place);
    }
    let mut add = |place: PathBuf, content: Result<Vec<u8>, String>| -> Result<(), String> {
        let content = content?;
        replace(&place, |new| {
            fs::write(new, content).map_err(|error| error.to_string())?;
            if is_library(&place) { strip(new) } else { Ok(()) }
        })?;
        files.push(place);
        Ok(())
    };
    let read = |file: &Path| fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    add(lib.join("libzonal.a"), read(&archive))?;
    for header in ["zonal.h", "zonal.hpp"] {
        add(include.join(header), read(&root.join(CRATE).join("include").join(header)))?;
    }
    if has(Extra::Malloc) {
        add(lib.join("libzonal_malloc.so"), read(&built.join("libzonal_malloc.so")))?;
    }
    if has(Extra::Umf) {
        // The provider is compiled with the program, because the headers of UMF may not be here.
        let (bridge, share) = (root.join(CRATE).join("bridges/umf"), target.join("share/zonal"));
        fs::create_dir_all(&share).map_err(|error| format!("{}: {error}", share.display()))?;
        for (folder, name) in
            [(&include, "zonal_umf.h"), (&share, "zonal_umf.c"), (&share, "zonal_umf_record.h")]
        {
            add(folder.join(name), read(&bridge.join(name)))?;
        }
    }
    add(pkg_config.join("zonal.pc"), Ok(pkg_config_file(places, &version).into_bytes()))?;
    add(cmake.join("zonal-config.cmake"), Ok(cmake_file(places, &shared, &soname).into_bytes()))?;
    add(cmake.join("zonal-config-version.cmake"), Ok(cmake_version_file(&version).into_bytes()))?;
    Ok(files)
}

/// Makes a file under another name in its folder, and then gives it its name. Programs that have the former file open or mapped
/// keep its contents, and none finds an incomplete file.
fn replace(place: &Path, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let new = place.with_file_name(format!(".{name}.{}", std::process::id()));
    fs::remove_file(&new).ok(); // of a process with the same number that was interrupted
    let made = make(&new).and_then(|()| fs::rename(&new, place).map_err(|error| error.to_string()));
    made.map_err(|error| {
        fs::remove_file(&new).ok();
        format!("{}: {error}", place.display())
    })
}

/// Removes debug information and LLVM's bitcode, which are most of a library. Global symbols stay, so that programs can be linked.
fn strip(library: &Path) -> Result<(), String> {
    expect(Command::new("strip").args(["--strip-debug", "-R", ".llvmbc", "-R", ".llvmcmd"]).arg(library))
}

/// Whether an installed file is a library, and not a link to one.
fn is_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    (name.ends_with(".a") || name.contains(".so")) && !file.is_symlink()
}

fn expect(command: &mut Command) -> Result<(), String> {
    match succeeds(command) {
        Outcome::Passed => Ok(()),
        Outcome::Failed(why) | Outcome::Skipped(why) => Err(why),
    }
}

/// Returns the part of a version that all versions of one binary interface share: before 1.0, the first two numbers.
fn compatible(version: &str) -> String {
    let numbers: Vec<&str> = version.split('.').collect();
    numbers[..numbers.len().min(if numbers[0] == "0" { 2 } else { 1 })].join(".")
}

/// Links the shared library from the static one.
fn link(root: &Path, archive: &Path, output: &Path, soname: &str) -> Result<(), String> {
    let map = root.join(CRATE).join("zonal.map");
    let mut call = Command::new("cc");
    call.args(["-shared", "-Wl,--whole-archive"]).arg(archive).arg("-Wl,--no-whole-archive");
    call.arg(format!("-Wl,--version-script={}", map.display())).arg(format!("-Wl,-soname,{soname}"));
    call.args(["-Wl,--gc-sections", "-Wl,-z,relro,-z,now", "-Wl,-z,defs"]);
    // A pool's threads run code of the library, so it must never be unloaded.
    call.arg("-Wl,-z,nodelete").args(LIBRARIES.split(' '));
    expect(call.arg("-o").arg(output))
}

fn pkg_config_file(places: &Places, version: &str) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/{}\nincludedir=${{prefix}}/include\n\n\
         Name: zonal\nDescription: Pools of memory on chosen NUMA nodes, with huge pages\nVersion: {version}\n\
         Libs: -L${{libdir}} -lzonal\nLibs.private: {LIBRARIES}\nCflags: -I${{includedir}}\n",
        places.prefix.display(),
        places.libdir
    )
}

fn cmake_file(places: &Places, shared: &str, soname: &str) -> String {
    let libdir = &places.libdir;
    // The file is in LIBDIR/cmake/zonal.
    let up = "/..".repeat(Path::new(libdir).components().count() + 2);
    let libraries = LIBRARIES.replace("-l", "").replace(' ', ";");
    format!(
        "get_filename_component(_zonal_prefix \"${{CMAKE_CURRENT_LIST_DIR}}{up}\" ABSOLUTE)\n\
         if(NOT TARGET zonal::zonal)\n  \
           add_library(zonal::zonal SHARED IMPORTED)\n  \
           set_target_properties(zonal::zonal PROPERTIES\n    \
             IMPORTED_LOCATION \"${{_zonal_prefix}}/{libdir}/{shared}\"\n    IMPORTED_SONAME \"{soname}\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_zonal_prefix}}/include\")\n  \
           add_library(zonal::zonal-static STATIC IMPORTED)\n  \
           set_target_properties(zonal::zonal-static PROPERTIES\n    \
             IMPORTED_LOCATION \"${{_zonal_prefix}}/{libdir}/libzonal.a\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_zonal_prefix}}/include\"\n    \
             INTERFACE_LINK_LIBRARIES \"{libraries}\")\n\
         endif()\n\
         if(TARGET umf::umf AND NOT TARGET zonal::umf AND EXISTS \"${{_zonal_prefix}}/include/zonal_umf.h\")\n  \
           add_library(zonal::umf INTERFACE IMPORTED)\n  \
           set_target_properties(zonal::umf PROPERTIES\n    \
             INTERFACE_SOURCES \"${{_zonal_prefix}}/share/zonal/zonal_umf.c\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_zonal_prefix}}/include\"\n    \
             INTERFACE_LINK_LIBRARIES \"umf::umf;pthread\")\n\
         endif()\n"
    )
}

/// Returns the file by which CMake decides whether this version serves: one of the same interface, and not older.
fn cmake_version_file(version: &str) -> String {
    let numbers = if version.starts_with("0.") { "^[0-9]+.[0-9]+" } else { "^[0-9]+" };
    format!(
        "set(PACKAGE_VERSION \"{version}\")\n\
         string(REGEX MATCH \"{numbers}\" _zonal_found \"${{PACKAGE_VERSION}}\")\n\
         string(REGEX MATCH \"{numbers}\" _zonal_wanted \"${{PACKAGE_FIND_VERSION}}\")\n\
         if(_zonal_found STREQUAL _zonal_wanted AND NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)\n  \
           set(PACKAGE_VERSION_COMPATIBLE TRUE)\n\
         endif()\n\
         if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)\n  set(PACKAGE_VERSION_EXACT TRUE)\nendif()\n"
    )
}

/// Returns the prefix of the everyday check.
pub(crate) fn checked_prefix(root: &Path) -> PathBuf {
    let prefix = target_folder(root).join("install-c/prefix");
    std::path::absolute(&prefix).unwrap_or(prefix)
}

/// Installs the library into the target folder, and builds and runs programs with it as others would.
fn check(root: &Path) -> Result<(), String> {
    let prefix = checked_prefix(root);
    let folder = prefix.parent().expect("the prefix is in the folder of the check").to_path_buf();
    if prefix.exists() {
        fs::remove_dir_all(&prefix).map_err(|error| format!("{}: {error}", prefix.display()))?;
    }
    let mut places =
        Places { prefix: prefix.clone(), libdir: "lib".to_owned(), extras: Vec::new(), staged: None };
    check_files(&install(root, &places, Profile::Dev)?, &[])?;
    places.extras = vec![Extra::Malloc, Extra::Umf];
    let files = install(root, &places, Profile::Dev)?;
    check_files(&files, &["libzonal_malloc.so", "zonal_umf.h"])?;
    let own = files.into_iter().filter(|file| !file.is_symlink());
    let opened = own.map(Opened::mark).collect::<Result<Vec<_>, _>>()?;
    install(root, &places, Profile::Dev)?;
    opened.into_iter().try_for_each(Opened::check)?;
    let programs = std::path::absolute(root.join(CRATE).join("tests/programs")).map_err(|e| e.to_string())?;
    let script = "set -eu\n\
        cc -std=gnu11 $(pkg-config --cflags zonal) \"$PROGRAMS/interface.c\" -o interface $(pkg-config --libs zonal)\n\
        LD_LIBRARY_PATH=\"$PREFIX/lib\" ./interface\n\
        cc -std=gnu11 $(pkg-config --cflags zonal) \"$PROGRAMS/interface.c\" -o interface-static \\\n\
            \"$PREFIX/lib/libzonal.a\" $(pkg-config --libs-only-l --static zonal | sed s/-lzonal//)\n\
        ./interface-static\n\
        cc -std=gnu11 -static $(pkg-config --cflags zonal) \"$PROGRAMS/callbacks.c\" -o callbacks-static \\\n\
            $(pkg-config --libs --static zonal) 2>static.log || { cat static.log; exit 1; }\n\
        ./callbacks-static\n\
        LD_PRELOAD=\"$PREFIX/lib/libzonal_malloc.so\" ZONAL_MALLOC_SIZE=64M ZONAL_MALLOC_REPORT=malloc.log ls >/dev/null\n\
        grep -q 'pool: 64.0 MiB' malloc.log\n\
        cmake -S \"$PROGRAMS/cmake\" -B build -DCMAKE_PREFIX_PATH=\"$PREFIX\" >cmake.log\n\
        cmake --build build >>cmake.log\n\
        ./build/interface-c\n\
        ./build/interface-cpp\n\
        nm -D --defined-only \"$PREFIX/lib/libzonal.so\" | sed -n 's/.* T \\(zonal_.*\\)@@ZONAL_0.1$/\\1/p' >exported\n\
        sed -n 's/^ *\\(zonal_.*\\);$/\\1/p' \"$PROGRAMS/../../zonal.map\" | sort | diff - exported\n\
        test \"$(nm -D --defined-only \"$PREFIX/lib/libzonal.so\" | grep -vc ' A ')\" = \"$(wc -l <exported)\"\n";
    let build = folder.join("build");
    if build.exists() {
        fs::remove_dir_all(&build).map_err(|error| format!("{}: {error}", build.display()))?;
    }
    let mut call = Command::new("sh");
    call.args(["-c", script]).current_dir(&folder).env("PREFIX", &prefix).env("PROGRAMS", programs);
    expect(call.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")))
}

/// An installed file that a program has open while it is installed again.
struct Opened {
    path: PathBuf,
    file: fs::File,
    before: Vec<u8>,
}

impl Opened {
    /// Opens a file, and changes its contents, so that they differ from those of the next installation.
    fn mark(path: PathBuf) -> Result<Self, String> {
        let open = || -> std::io::Result<(fs::File, Vec<u8>)> {
            let before = fs::read(&path)?;
            let mut file = fs::File::options().read(true).append(true).open(&path)?;
            file.write_all(b"marked")?;
            Ok((file, before))
        };
        let (file, before) = open().map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path, file, before })
    }

    /// Checks that the file was replaced by one with the former contents, and that the open one has not changed.
    fn check(mut self) -> Result<(), String> {
        let mut compare = || -> std::io::Result<bool> {
            let is_same = fs::metadata(&self.path)?.ino() == self.file.metadata()?.ino();
            let mut kept = Vec::new();
            self.file.rewind()?;
            self.file.read_to_end(&mut kept)?;
            let is_kept = kept.strip_suffix(b"marked") == Some(&self.before[..]);
            Ok(!is_same && is_kept && fs::read(&self.path)? == self.before)
        };
        match compare() {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{} was written in place", self.path.display())),
            Err(error) => Err(format!("{}: {error}", self.path.display())),
        }
    }
}

/// Checks that of the files which are installed only if they are named, exactly these are, and that the libraries are
/// stripped.
fn check_files(files: &[PathBuf], named: &[&str]) -> Result<(), String> {
    for extra in ["libzonal_malloc.so", "zonal_umf.h"] {
        if files.iter().any(|file| file.ends_with(extra)) != named.contains(&extra) {
            return Err(format!("{extra} is installed without being named, or the other way round"));
        }
    }
    for file in files.iter().filter(|file| is_library(file)) {
        let output =
            Command::new("readelf").arg("-SW").arg(file).output().map_err(|error| error.to_string())?;
        let sections = String::from_utf8_lossy(&output.stdout);
        if let Some(kept) = [".debug_info", ".llvmbc"].into_iter().find(|name| sections.contains(name)) {
            return Err(format!("{} has the section {kept}", file.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_stays_what_it_was_for_programs_that_have_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("libzonal.so");
        fs::write(&place, "one").unwrap();
        let mut old = fs::File::open(&place).unwrap();
        let write =
            |text: &'static str| move |new: &Path| fs::write(new, text).map_err(|error| error.to_string());
        let failed = replace(&place, |new| write("half")(new).and_then(|()| Err("no strip".to_owned())));
        assert_eq!(failed, Err(format!("{}: no strip", place.display())));
        assert_eq!(fs::read_to_string(&place).unwrap(), "one");
        replace(&place, write("two")).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "two");
        assert_eq!(std::io::read_to_string(&mut old).unwrap(), "one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a file with another name is left");
    }

    #[test]
    fn versions_before_the_first_are_compatible_by_two_numbers() {
        assert_eq!(["0.1.0", "0.12.3", "1.2.3", "10.0.1"].map(compatible), ["0.1", "0.12", "1", "10"]);
    }

    fn parse(words: &[&str], staged: Option<&str>) -> Result<Places, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Places::parse(&words, staged.map(PathBuf::from))
    }

    #[test]
    fn the_prefix_is_required() {
        assert_eq!(parse(&["--prefix", "/opt/zonal"], None).unwrap().target(), Path::new("/opt/zonal"));
        for wrong in [&[][..], &["--prefix"], &["--prefix", ""], &["/opt/zonal"], &["--prefix", "a", "b"]] {
            assert!(parse(wrong, None).unwrap_err().contains("--prefix DIR"));
        }
    }

    #[test]
    fn extras_are_installed_if_they_are_named() {
        let extras = |words: &[&str]| parse(words, None).map(|places| places.extras);
        assert_eq!(extras(&["--prefix", "/usr"]), Ok(vec![]));
        assert_eq!(extras(&["--with", "umf", "--prefix", "/usr"]), Ok(vec![Extra::Umf]));
        let both = extras(&["--prefix", "/usr", "--with", "malloc", "--with", "umf"]);
        assert_eq!(both, Ok(vec![Extra::Malloc, Extra::Umf]));
        let wrong = extras(&["--prefix", "/usr", "--with", "tcmalloc"]).unwrap_err();
        assert_eq!(wrong, "--with is tcmalloc; it must be malloc or umf");
    }

    #[test]
    fn packages_have_their_own_directories() {
        let places =
            parse(&["--libdir", "lib/x86_64-linux-gnu", "--prefix", "/usr"], Some("/tmp/stage")).unwrap();
        assert_eq!(places.target(), Path::new("/tmp/stage/usr"));
        let (pc, cmake) =
            (pkg_config_file(&places, "0.1.0"), cmake_file(&places, "libzonal.so.0.1.0", "libzonal.so.0.1"));
        assert!(pc.starts_with("prefix=/usr\nlibdir=${prefix}/lib/x86_64-linux-gnu\n"), "{pc}");
        assert!(
            cmake.contains("LIST_DIR}/../../../..\"") && cmake.contains("/lib/x86_64-linux-gnu/libzonal.a"),
            "{cmake}"
        );
        for wrong in ["/lib", "../lib", ""] {
            assert!(
                parse(&["--prefix", "/usr", "--libdir", wrong], None)
                    .unwrap_err()
                    .contains("within the prefix")
            );
        }
    }
}
