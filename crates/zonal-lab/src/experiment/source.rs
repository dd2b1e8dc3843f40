//! Where an experiment and the files it names come from: a file of the user's, or this program.

use std::borrow::Cow;
use std::io;
use std::path::{Component, Path, PathBuf};

use zonal_machine::input::{self, Folder, Limit};
use zonal_machine::{Excerpt, MachineModel, preset};

use super::built_in::BuiltIn;
use super::document::FileError;

/// Ending of machine files, by which they are told from presets.
pub(super) const MACHINE_FILE: &str = ".json";

/// Most bytes of all machine files of an experiment.
pub(super) const MACHINE_BYTES_MAX: usize = 64 << 20;

/// An experiment's file.
#[derive(Clone, Debug)]
pub enum Source {
    /// On disk.
    File(PathBuf),
    /// Built in.
    BuiltIn(&'static BuiltIn),
}

impl Source {
    /// As errors call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::BuiltIn(known) => format!("{}.toml", known.name),
        }
    }

    /// The experiment's text.
    pub(super) fn text(&self) -> Result<Cow<'static, str>, FileError> {
        match self {
            Self::File(path) => Ok(opened(path, input::read_text(path, Limit::Experiment))?.into()),
            Self::BuiltIn(known) => Ok(known.text.into()),
        }
    }

    /// A file that the experiment names, with the ending of its kind, and its text. It lies beside the experiment or
    /// in a folder there: else an experiment of somebody else's could read any of the reader's own files. Errors
    /// show nothing of what is in it.
    pub(super) fn companion(
        &self,
        relative: &str,
        ending: &str,
    ) -> Result<(String, Cow<'static, str>), FileError> {
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
        }
    }

    /// The machine of a preset or of a machine file, whose bytes are taken from `left`; the error is what is wrong, in
    /// one line.
    pub(super) fn machine(&self, name: &str, left: &mut usize) -> Result<MachineModel, String> {
        if !name.ends_with(MACHINE_FILE) {
            return preset(name)
                .map_err(|error| format!("{error}; or name a machine file, as in my-machine{MACHINE_FILE}"));
        }
        let (file, text) = self.companion(name, MACHINE_FILE).map_err(|error| error.to_string())?;
        *left = left.checked_sub(text.len()).ok_or_else(|| {
            let most = MACHINE_BYTES_MAX >> 20;
            format!(
                "{}: with it the machine files of the experiment have more than {most} MiB",
                Excerpt::name(&file)
            )
        })?;
        MachineModel::from_json(&text, &file).map_err(|error| error.without_contents())
    }
}

/// What is wrong with a name of a file in the experiment's folder. Paths that lead out of it are refused as such.
fn unfit(relative: &Path, ending: &str) -> Option<String> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let is_hidden = |part: Component<'_>| matches!(part, Component::Normal(name) if name.as_encoded_bytes().starts_with(b"."));
    if !relative.components().all(is_plain) {
        return None;
    }
    if relative.components().any(is_hidden) {
        return Some("an experiment names no hidden files; name one without a leading dot".to_owned());
    }
    let has_ending = relative.as_os_str().as_encoded_bytes().ends_with(ending.as_bytes());
    (!has_ending).then(|| format!("such files end in {ending}; name one that does"))
}

fn opened(path: &Path, text: io::Result<String>) -> Result<String, FileError> {
    text.map_err(|error| FileError {
        file: path.display().to_string(),
        line: None,
        problem: format!("cannot be read: {error}"),
    })
}
