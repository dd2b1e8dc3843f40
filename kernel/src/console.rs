//! The serial console, and the macros that print to it.

use core::fmt::{self, Write};

use spin::Once;
use uart_16550::backend::PioBackend;
use uart_16550::{Config, Uart16550Tty};
use x86_64::instructions::interrupts::without_interrupts;

use crate::sync::Mutex;

/// Port of a PC's first serial device.
const COM1: u16 = 0x3F8;

static CONSOLE: Once<Mutex<Uart16550Tty<PioBackend>>> = Once::new();

/// Starts the console.
pub(crate) fn start() {
    CONSOLE.call_once(|| {
        // SAFETY: nothing else in this kernel uses the ports of the device.
        let device = unsafe { Uart16550Tty::new_port(COM1, Config::default()) };
        Mutex::new(device.expect("a PC has a serial device at its first port"))
    });
}

/// Prints text. A message is not mixed with messages of other CPUs.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    if let Some(console) = CONSOLE.get() {
        // The console accepts every byte, so only the text's own formatting could fail.
        without_interrupts(|| console.lock().write_fmt(text)).expect("texts of this kernel can be formatted");
    }
}

/// Prints text without waiting for the console, for the report of a fault: the CPU that holds the console may not run.
pub(crate) fn print_at_once(text: fmt::Arguments<'_>) {
    if let Some(console) = CONSOLE.get() {
        for _ in 0..1_000_000 {
            if let Some(mut device) = console.try_lock() {
                device.write_fmt(text).ok(); // there is nowhere to report a failure to
                return;
            }
            core::hint::spin_loop();
        }
        // The holder of the lock may be this CPU. Mixed text is better than none.
        // SAFETY: the machine ends after this text, so the holder of the lock does not notice.
        unsafe { console.force_unlock() };
        console.lock().write_fmt(text).ok(); // as above
    }
}

/// Prints a line.
macro_rules! println {
    ($($text:tt)*) => { $crate::console::print(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use println;
