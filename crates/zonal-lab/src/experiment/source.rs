//! Sources of an experiment and the files that it names: the user's file system, or this program's binary.

use std::borrow::Cow;
use std::io;
use std::path::{Component, Path, PathBuf};

use zonal_machine::input::{self, Folder, Limit};
use zonal_machine::{Excerpt, MachineModel, preset};

use super::built_in::BuiltIn;
use super::document::FileError;
use super::texts::Texts;

/// File name extension of machine files, which distinguishes them from presets.
pub(super) const MACHINE_FILE: &str = ".json";

/// Maximum total size of an experiment's machine files, in bytes.
pub(super) const MACHINE_BYTES_MAX: usize = 64 << 20;

/// Source of an experiment.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file on disk.
    File(PathBuf),
    /// A built-in experiment.
    BuiltIn(&'static BuiltIn),
    /// Texts, which need no file system.
    Texts(Texts),
}

impl Source {
    /// Returns the name of the experiment file for use in errors.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::BuiltIn(known) => format!("{}.toml", known.name),
            Self::Texts(texts) => texts.name.clone(),
        }
    }

    /// Returns the text of the experiment.
    pub(super) fn text(&self) -> Result<Cow<'_, str>, FileError> {
        match self {
            Self::File(path) => Ok(opened(path, input::read_text(path, Limit::Experiment))?.into()),
            Self::BuiltIn(known) => Ok(known.text.into()),
            Self::Texts(texts) => Ok((&*texts.text).into()),
        }
    }

    /// Returns the path and the text of a file that the experiment names. The name must have the extension `ending`.
    /// The file must be in the experiment's folder or in a folder below it; otherwise an experiment written by
    /// another person could read any file of the user. Errors do not quote the file's contents.
    pub(super) fn companion(
        &self,
        relative: &str,
        ending: &str,
    ) -> Result<(String, Cow<'_, str>), FileError> {
        match self {
            Self::File(path) => {
                let folder = path.parent().unwrap_or(Path::new(""));
                let path = folder.join(relative);
                if let Some(problem) = unfit(Path::new(relative), ending) {
                    return Err(FileError { file: path.display().to_string(), line: None, problem });
                }
                let limit = if ending == MACHINE_FILE { Limit::Document } else { Limit::Experiment };
                let text = Folder::new(folder).read_text(Path::new(relative), limit);
                Ok((path.display().to_string(), opened(&path, text)?.into()))
            }
            Self::BuiltIn(known) => match known.files.iter().find(|(name, _)| *name == relative) {
                Some((name, text)) => Ok(((*name).to_owned(), (*text).into())),
                None => Err(FileError {
                    file: relative.to_owned(),
                    line: None,
                    problem: "is not built in".to_owned(),
                }),
            },
            Self::Texts(texts) => match texts.files.get(relative) {
                Some(text) => Ok((relative.to_owned(), (&**text).into())),
                None => {
                    let known: Vec<&str> = texts.files.keys().map(|name| &**name).collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    let problem = format!("is not among the files given with the experiment ({known})");
                    Err(FileError { file: relative.to_owned(), line: None, problem })
                }
            },
        }
    }

    /// Returns the machine described by a preset or a machine file. The size of a machine file is subtracted from
    /// `left`. Errors are one line of text.
    pub(super) fn machine(&self, name: &str, left: &mut usize) -> Result<MachineModel, String> {
        if !name.ends_with(MACHINE_FILE) {
            return preset(name)
                .map_err(|error| format!("{error}; or name a machine file, as in my-machine{MACHINE_FILE}"));
        }
        let (file, text) = self.companion(name, MACHINE_FILE).map_err(|error| error.to_string())?;
        *left = left.checked_sub(text.len()).ok_or_else(|| {
            let most = MACHINE_BYTES_MAX >> 20;
            format!(
                "{}: with this file the machine files of the experiment exceed {most} MiB, the limit",
                Excerpt::name(&file)
            )
        })?;
        MachineModel::from_json(&text, &file).map_err(|error| error.without_contents())
    }
}

/// Describes what is wrong with the name of a file in the experiment's folder. Paths that lead out of the folder pass
/// this check, because [`Folder`] refuses them.
fn unfit(relative: &Path, ending: &str) -> Option<String> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let is_hidden = |part: Component<'_>| matches!(part, Component::Normal(name) if name.as_encoded_bytes().starts_with(b"."));
    if !relative.components().all(is_plain) {
        return None;
    }
    if relative.components().any(is_hidden) {
        return Some("hidden files are not read; use a name without a leading dot".to_owned());
    }
    let has_ending = relative.as_os_str().as_encoded_bytes().ends_with(ending.as_bytes());
    (!has_ending).then(|| format!("the name of such a file must end in {ending}"))
}

fn opened(path: &Path, text: io::Result<String>) -> Result<String, FileError> {
    text.map_err(|error| FileError {
        file: path.display().to_string(),
        line: None,
        problem: format!("cannot be read: {error}"),
    })
}
