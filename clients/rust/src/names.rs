//! The servers that a name stands for: looked up when a client connects, and again every half minute.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tonic::transport::Endpoint;
use tonic::transport::channel::Change;

const LOOK_UP_AGAIN: Duration = Duration::from_secs(30);

/// Of a server that takes turns with others; `None` is the name itself, whose failure to connect says what is wrong with it.
pub(crate) type Place = Option<SocketAddr>;

/// Keeps the servers of a channel those that `look_up` finds, until the channel is gone. While nothing was ever found the
/// name itself stands there; what was found once stays when a later look fails.
pub(crate) async fn follow(
    look_up: impl AsyncFn() -> io::Result<Vec<SocketAddr>>,
    endpoint: impl Fn(Place) -> Endpoint,
    changes: Sender<Change<Place, Endpoint>>,
) {
    let mut known: HashSet<Place> = HashSet::new();
    loop {
        let mut found: HashSet<Place> = look_up().await.unwrap_or_default().into_iter().map(Some).collect();
        if found.is_empty() {
            found = if known.is_empty() { HashSet::from([None]) } else { known.clone() };
        }
        for &place in found.difference(&known) {
            if changes.send(Change::Insert(place, endpoint(place))).await.is_err() {
                return;
            }
        }
        for &place in known.difference(&found) {
            if changes.send(Change::Remove(place)).await.is_err() {
                return;
            }
        }
        known = found;
        if tokio::time::timeout(LOOK_UP_AGAIN, changes.closed()).await.is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::mpsc::{self, Receiver};

    use super::*;

    const ONE: &str = "10.0.0.1:50051";
    const TWO: &str = "10.0.0.2:50051";

    fn places(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn name_or(place: Place) -> String {
        place.map_or("name".into(), |address| address.to_string())
    }

    async fn next(changes: &mut Receiver<Change<Place, Endpoint>>) -> String {
        match changes.recv().await.unwrap() {
            Change::Insert(place, _) => format!("+{}", name_or(place)),
            Change::Remove(place) => format!("-{}", name_or(place)),
        }
    }

    /// The changes that a series of looks brings, half a minute apart.
    async fn changes_of(looks: &[io::Result<Vec<SocketAddr>>], count: usize) -> Vec<String> {
        let (sender, mut changes) = mpsc::channel(8);
        let at = Cell::new(0);
        let look_up = async || {
            let look = &looks[at.get().min(looks.len() - 1)];
            at.set(at.get() + 1);
            match look {
                Ok(found) => Ok(found.clone()),
                Err(error) => Err(error.kind().into()),
            }
        };
        let endpoint = |_| Endpoint::from_static("http://name:50051");
        let listen = async {
            let mut seen = Vec::new();
            for _ in 0..count {
                seen.push(next(&mut changes).await);
            }
            drop(changes); // the channel is gone: `follow` returns
            seen
        };
        tokio::join!(follow(look_up, endpoint, sender), listen).1
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_come_and_go_are_followed_and_a_failed_look_changes_nothing() {
        let looks = [Ok(places(&[ONE])), Err(io::ErrorKind::TimedOut.into()), Ok(places(&[TWO]))];
        assert_eq!(changes_of(&looks, 3).await, ["+10.0.0.1:50051", "+10.0.0.2:50051", "-10.0.0.1:50051"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_without_servers_stands_for_itself_until_there_are_some() {
        let looks = [Err(io::ErrorKind::NotFound.into()), Ok(places(&[ONE]))];
        assert_eq!(changes_of(&looks, 3).await, ["+name", "+10.0.0.1:50051", "-name"]);
    }
}
