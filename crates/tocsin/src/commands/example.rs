//! Command `example`: writes the generated files of an example.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::{
    examples::stock::{self, Market},
    failure::{Failure, Outcome},
    terminal::{Terminal, thousands},
};

/// Arguments of `tocsin example`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    example: Example,
}

#[derive(Debug, clap::Subcommand)]
enum Example {
    /// Write the stock market example: subscribers, orders, quotes
    Stock(StockArgs),
}

#[derive(Debug, clap::Args)]
struct StockArgs {
    /// Output folder; created if missing
    #[arg(long, short, value_name = "FOLDER", default_value = "market")]
    out: PathBuf,
    /// Number of subscribers
    #[arg(long, default_value_t = 200_000)]
    subscribers: u32,
    /// Number of orders per subscriber
    #[arg(long, default_value_t = 5)]
    orders: u32,
    /// Number of quote batches, each with one quote per symbol
    #[arg(long, default_value_t = 10)]
    batches: u32,
    /// URL that receives the notifications of the subscribers
    #[arg(long, default_value = "http://127.0.0.1:9000/hook")]
    url: String,
    /// Random seed: the same seed generates the same files
    #[arg(long, default_value_t = stock::SEED)]
    seed: u64,
}

impl Args {
    /// Writes the files and prints their sizes.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        match self.example {
            Example::Stock(args) => args.run(terminal),
        }
    }
}

impl StockArgs {
    fn run(self, terminal: &Terminal) -> Outcome {
        fs::create_dir_all(&self.out).map_err(|error| Failure::file("make the folder", &self.out, &error))?;
        let market = Market::new(self.seed);
        let orders = u64::from(self.subscribers) * u64::from(self.orders);
        let report = |path: &Path, count: u64, what: &str| {
            terminal.line(format_args!("{}: {} {what}", path.display(), thousands(count)))
        };

        let path = self.out.join("subscribers.ndjson");
        write(&path, |out| stock::write_subscribers(out, self.subscribers, &self.url))?;
        report(&path, u64::from(self.subscribers), "subscribers")?;

        let path = self.out.join("subscriptions.ndjson");
        write(&path, |out| stock::write_subscriptions(out, market.orders(self.subscribers, self.orders)))?;
        report(&path, orders, "subscriptions")?;

        for number in 0..self.batches {
            let path = self.out.join(format!("quotes-{number:02}.ndjson"));
            let quotes = market.quotes(u64::from(number));
            write(&path, |out| stock::write_quotes(out, &quotes))?;
            report(&path, quotes.len() as u64, "quotes")?;
        }
        Ok(())
    }
}

fn write(path: &Path, lines: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Outcome {
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        lines(&mut out)?;
        out.flush()
    });
    written.map_err(|error| Failure::file("write", path, &error))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_files_of_the_stock_market_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("market");
        let words = ["x", "stock", "--subscribers", "3", "--orders", "2", "--batches", "1", "--out"];
        let typed = TestCli::parse_from(words.into_iter().map(Into::into).chain([out.clone().into_os_string()]));
        let (terminal, captured) = Terminal::captured();
        typed.args.run(&terminal).expect("files are written");
        let lines = |name: &str| fs::read_to_string(out.join(name)).expect("the file is there").lines().count();
        assert_eq!(["subscribers.ndjson", "subscriptions.ndjson", "quotes-00.ndjson"].map(lines), [3, 6, 1_000]);
        assert!(captured.text().contains("quotes-00.ndjson: 1,000 quotes\n"), "{}", captured.text());
    }
}
