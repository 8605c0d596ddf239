//! `higgs-tts`: speech from text on your own machine.

fn main() {}
