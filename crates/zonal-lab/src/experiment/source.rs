//! Where an experiment and the files it names come from: a file of the user's, or this program.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zonal_machine::{MachineModel, preset};

use super::built_in::BuiltIn;
use super::document::FileError;

/// Ending of machine files, by which they are told from presets.
const MACHINE_FILE: &str = ".json";

/// Largest file, in bytes: a device that never ends may be named by mistake.
const FILE_BYTES_MAX: u64 = 16 << 20;

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
            Self::File(path) => Ok(read(path)?.into()),
            Self::BuiltIn(known) => Ok(known.text.into()),
        }
    }

    /// A file that the experiment names, and its text.
    pub(super) fn companion(&self, relative: &str) -> Result<(String, Cow<'static, str>), FileError> {
        match self {
            Self::File(path) => {
                let path = path.parent().unwrap_or(Path::new("")).join(relative);
                let text = read(&path)?;
                Ok((path.display().to_string(), text.into()))
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

    /// The machine of a preset or of a machine file; the error is what is wrong, in one line.
    pub(super) fn machine(&self, name: &str) -> Result<MachineModel, String> {
        if !name.ends_with(MACHINE_FILE) {
            return preset(name)
                .map_err(|error| format!("{error}; or name a machine file, as in my-machine{MACHINE_FILE}"));
        }
        let (file, text) = self.companion(name).map_err(|error| error.to_string())?;
        MachineModel::from_json(&text, &file).map_err(|error| error.to_string())
    }
}

fn read(path: &Path) -> Result<String, FileError> {
    let text = || {
        let mut text = String::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            let problem = format!("it has no end within {} MiB", FILE_BYTES_MAX >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
        }
        Ok(text)
    };
    text().map_err(|error| FileError {
        file: path.display().to_string(),
        line: None,
        problem: format!("cannot be read: {error}"),
    })
}
