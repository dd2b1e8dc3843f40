use std::sync::atomic::AtomicBool;
fn main() {
    let args: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let out = std::path::PathBuf::from(&args[0]);
    if args.len() > 1 {
        let options = zonal_trace::RecordOptions { out: &out, replace: zonal_machine::output::Replace::Own, duration: None,
            buffer_kib: std::env::var("KB").ok().map(|k| k.parse().unwrap()), command: &args[1..] };
        let r = zonal_trace::record(&options, &AtomicBool::new(false)).unwrap();
        println!("{} bytes {} events {:.2} B/event {:?} lost {} {:.2}s", r.bytes, r.trailer.events(), r.bytes as f64 / r.trailer.events() as f64, r.trailer.kinds, r.trailer.lost(), (r.trailer.ended_ns - r.header.started_ns) as f64 / 1e9);
    } else {
        let t = std::time::Instant::now();
        let mut r = zonal_trace::TraceReader::open(&out).unwrap();
        let mut n = 0u64; 
        for e in &mut r { e.unwrap(); n += 1; }
        println!("read {n} late {} in {:?}; {:?}", r.late(), t.elapsed(), r.trailer().map(|t| &t.cpus));
    }
}
