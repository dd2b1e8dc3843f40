//! Every setting of the table, set and read through the C interface.

use std::ffi::{CStr, CString};

use zonal_c::change::{zonal_pool_set_setting, zonal_pool_setting};
use zonal_c::pool::{zonal_pool_build, zonal_pool_close};
use zonal_c::status::zonal_last_error;
use zonal_c::status::zonal_status::{ZONAL_INVALID_ARGUMENT, ZONAL_OK};
use zonal_c::types::{zonal_pool, zonal_pool_options};
use zonal_linux::{Access, Setting, SettingValues};
use zonal_testing::Edges;

fn error() -> String {
    // SAFETY: the text of this thread's last error ends with a zero, and stays until the next call.
    unsafe { CStr::from_ptr(zonal_last_error()) }.to_str().unwrap().to_owned()
}

fn set(pool: zonal_pool, name: &str, value: &str) -> Result<(), String> {
    let texts = [name, value].map(|text| CString::new(text).unwrap());
    // SAFETY: the texts end with zeros.
    let status = unsafe { zonal_pool_set_setting(pool, texts[0].as_ptr(), texts[1].as_ptr()) };
    if status == ZONAL_OK {
        return Ok(());
    }
    assert_eq!(status, ZONAL_INVALID_ARGUMENT);
    Err(error())
}

fn get(pool: zonal_pool, name: &str) -> String {
    let (name, mut buffer) = (CString::new(name).unwrap(), [0; 64]);
    // SAFETY: the name ends with a zero, and the buffer has its length.
    let status = unsafe {
        zonal_pool_setting(pool, name.as_ptr(), buffer.as_mut_ptr(), buffer.len(), std::ptr::null_mut())
    };
    assert_eq!(status, ZONAL_OK, "{}", error());
    // SAFETY: the value ends with a zero.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_owned()
}

#[test]
fn every_setting_takes_its_edges_and_nothing_beyond() {
    let options = zonal_pool_options { size: 32 << 20, fake_nodes: 2, ..zonal_pool_options::default() };
    let mut pool = zonal_pool { id: 0 };
    // SAFETY: the options and the handle have places.
    assert_eq!(unsafe { zonal_pool_build(&raw const options, &raw mut pool) }, ZONAL_OK, "{}", error());
    for setting in Setting::ALL.into_iter().filter(|setting| setting.info().access == Access::ReadWrite) {
        let info = setting.info();
        let names: &[&str] = if let SettingValues::Names(names) = info.values { names } else { &[] };
        let Edges { right, wrong } = Edges::of(info.values.range(), names);
        for text in right {
            match set(pool, info.name, &text) {
                Ok(()) => assert_eq!(get(pool, info.name), text, "{setting}"),
                // More than the pool has, or a rule that needs larger pagesets.
                Err(error) => assert!(error.starts_with(&format!("{setting} was not changed: ")), "{error}"),
            }
        }
        for text in wrong {
            let before = get(pool, info.name);
            let error = set(pool, info.name, &text).unwrap_err();
            assert!(
                error.contains(&format!("{setting} cannot be `{text}`; allowed: {}", info.values)),
                "{error}"
            );
            assert_eq!(get(pool, info.name), before, "{setting}");
        }
    }
    assert_eq!(zonal_pool_close(pool, 0), ZONAL_OK);
}
