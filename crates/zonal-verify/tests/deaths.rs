//! Deaths of processes that share a pool, at a sample of the instructions, and a short soak; `cargo xtask deep` has all, and a
//! long one.

use std::process::Command;

/// At how many instructions of an operation children die.
const MOST: &str = "5";
/// The longest operation: joining has 45 000 instructions, and takes half of the time.
const LONGEST: &str = "10000";

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn survivors_of_a_sample_of_deaths_find_nothing() {
    if !cfg!(target_arch = "x86_64") {
        zonal_testing::skipped!("sequences are found in x86-64 programs only");
        return;
    }
    let deaths = Command::new(env!("CARGO_BIN_EXE_deaths"))
        .args(["--most", MOST, "--longest", LONGEST, "--from", "3"])
        .output()
        .unwrap();
    let [said, complained] = [deaths.stdout, deaths.stderr].map(|text| String::from_utf8(text).unwrap());
    if complained.contains("PermissionDenied") {
        zonal_testing::skipped!("processes may not be traced here");
        return;
    }
    assert!(deaths.status.success(), "{said}\n{complained}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("deaths: nothing found after"), "{said}");
    let operations: Vec<_> = said.lines().filter(|line| line.contains(" instructions, ")).collect();
    assert!(operations.len() > 20, "{said}");
    assert!(operations.iter().all(|line| !line.contains(", 0 deaths, 0 in sequences")), "{said}");
    println!("{last}");
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn processes_that_use_a_pool_with_all_operations_survive_deaths() {
    let soak = Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--processes", "4", "--minutes", "0.08", "--seed", "3"])
        .output()
        .unwrap();
    let [said, complained] = [soak.stdout, soak.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(soak.status.success(), "{said}\n{complained}");
    let last = said.lines().last().unwrap_or_default();
    let deaths: u64 =
        last.trim_start_matches(|c: char| !c.is_ascii_digit()).split(' ').next().unwrap().parse().unwrap();
    assert!(deaths > 0, "{said}");
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn histories_of_processes_that_die_at_any_write_find_nothing() {
    let mut sums = [0; 4];
    for seed in 0..20 {
        let one = zonal_verify::mortal::run_random(seed, 1000).unwrap_or_else(|error| panic!("{error}"));
        let of_one = [one.operations, one.deaths, one.deaths_in_recovery, one.verified];
        sums.iter_mut().zip(of_one).for_each(|(sum, one)| *sum += one);
    }
    println!("{sums:?}");
    assert!(sums.iter().all(|&sum| sum > 100), "{sums:?}");
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn exhaustive_worlds_with_a_sample_of_the_deaths_find_nothing() {
    // One of the first deaths in each operation from each state, and every 997th of the second ones.
    let worlds = zonal_verify::mortal::Worlds { only: "", stride: 1, most: 1, second_stride: 997 };
    let sums = worlds.run().unwrap_or_else(|error| panic!("{error}"));
    println!("{sums}");
    assert!(sums.first_deaths > 250 && sums.second_deaths > 2500, "{sums}");
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_run_ends_where_what_a_recovery_has_left_of_another_begins() {
    let [deaths, runs] = zonal_verify::mortal::runs_across_areas().unwrap_or_else(|error| panic!("{error}"));
    println!("{deaths} deaths, {runs} runs");
    assert!(0 < runs && runs < 2 * deaths, "{deaths} deaths, {runs} runs");
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn blocks_are_found_in_an_area_that_is_half_rebuilt() {
    let deaths = zonal_verify::mortal::areas_half_rebuilt().unwrap_or_else(|error| panic!("{error}"));
    println!("{deaths} deaths");
    assert!(deaths > 100, "{deaths} deaths");
}
