//! Writes the Rust of the contract: `cargo run -p magnitude-generate [FOLDER]`. The compiler is protox, so that no
//! protoc is needed.

use std::path::Path;

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const SERVICES: [&str; 4] = ["inference", "model", "health", "snapshot"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = Path::new(CLIENT).join("../../proto");
    let folder = std::env::args().nth(1).unwrap_or(format!("{CLIENT}/src/v1"));
    let files = SERVICES.map(|name| proto.join(format!("magnitude/v1/{name}.proto")));
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .out_dir(folder)
        .compile_fds(protox::compile(files, [proto])?)?;
    Ok(())
}
