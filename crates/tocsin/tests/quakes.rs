//! Week of earthquakes by the commands of the example's README: the received mails are those of an independent
//! computation, which tests every earthquake with every subscriber.

mod support;

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;
use support::{Platform, mails::Mails};

const PUBLISH: [&str; 8] = [
    "publish",
    "quakes",
    "quake",
    "examples/quakes/usgs-earthquakes-week.geojson",
    "--items=features",
    "--map=id=id,magnitude=properties.mag,place=properties.place,at=properties.time,url=properties.url",
    "--map=longitude=geometry.coordinates.0,latitude=geometry.coordinates.1,depth_km=geometry.coordinates.2",
    "--batch=100",
];

struct Person {
    name: String,
    latitude: f64,
    longitude: f64,
    distance_km: f64,
    magnitude_min: f64,
}

/// Great-circle distance by the angle between two vectors, independent of the server's formula.
fn distance_km(from: (f64, f64), to: (f64, f64)) -> f64 {
    let vector = |(latitude, longitude): (f64, f64)| {
        let (latitude, longitude) = (latitude.to_radians(), longitude.to_radians());
        [latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()]
    };
    let (a, b) = (vector(from), vector(to));
    let cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
    let sine = cross.iter().map(|part| part * part).sum::<f64>().sqrt();
    let cosine: f64 = a.iter().zip(b).map(|(left, right)| left * right).sum();
    6371.0088 * sine.atan2(cosine)
}

/// Expected mails per person and earthquake.
fn expected(people: &[Person]) -> BTreeMap<(String, String), usize> {
    let week =
        fs::read_to_string(support::repository("examples/quakes/usgs-earthquakes-week.geojson")).expect("the week");
    let week: Value = serde_json::from_str(&week).expect("GeoJSON");
    let mut mails = BTreeMap::new();
    for quake in week["features"].as_array().expect("features") {
        let Some(magnitude) = quake["properties"]["mag"].as_f64() else { continue };
        let at = |index: usize| quake["geometry"]["coordinates"][index].as_f64().expect("a coordinate");
        for person in people {
            let distance = distance_km((at(1), at(0)), (person.latitude, person.longitude));
            // The formulas differ in the last digits; no person of this test is on the boundary.
            assert!((distance - person.distance_km).abs() > 1e-6, "{} is on the boundary", person.name);
            if magnitude >= person.magnitude_min && distance <= person.distance_km {
                let id = quake["id"].as_str().expect("an id").to_owned();
                *mails.entry((person.name.clone(), id)).or_default() += 1;
            }
        }
    }
    mails
}

/// Received mails per person and earthquake.
fn arrived(mails: &Mails) -> BTreeMap<(String, String), usize> {
    let mut arrived = BTreeMap::new();
    for mail in mails.all() {
        let person = mail.to[0].split('@').next().expect("an address").to_owned();
        let body = mail.body().replace("=\r\n", "");
        let (_, rest) = body.split_once("/eventpage/").unwrap_or_else(|| panic!("no earthquake in {}", mail.text));
        let id: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
        *arrived.entry((person, id)).or_default() += 1;
    }
    arrived
}

async fn start(mails: &Mails) -> Platform {
    let platform = Platform::start(&[("SMTP_PORT", &mails.port.to_string())]).await;
    let application = support::repository("examples/quakes/application.yaml");
    platform.run(&["apply", application.to_str().expect("a path"), "--yes"]);
    platform
}

async fn play(platform: &Platform, mails: &Mails, expected: BTreeMap<(String, String), usize>) {
    let publish: Vec<String> = PUBLISH
        .iter()
        .map(|argument| match argument.strip_prefix("examples/") {
            Some(rest) => support::repository("examples").join(rest).to_str().expect("a path").to_owned(),
            None => argument.to_string(),
        })
        .collect();
    platform.run(&publish.iter().map(String::as_str).collect::<Vec<_>>());
    let count: usize = expected.values().sum();
    let all = mails.wait_until(|| mails.count() >= count).await;
    assert!(all, "{} of {count} mails came", mails.count());
    let arrived = arrived(mails);
    for (who, count) in &expected {
        assert_eq!(arrived.get(who), Some(count), "{who:?}");
    }
    assert_eq!(arrived.len(), expected.len());
    println!("{count} mails, as computed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_have_the_documented_effects() {
    let mails = Mails::start().await;
    let platform = start(&mails).await;
    let sample =
        |name: &str| support::repository("examples/quakes/samples").join(name).to_str().expect("a path").to_owned();
    platform.run(&["import", "subscribers", &sample("subscribers.ndjson")]);
    platform.run(&["import", "subscriptions", &sample("subscriptions.ndjson")]);
    platform.run(&["import", "subscribers", &sample("subscribers.csv")]);
    let csv = sample("subscriptions.csv");
    platform.run(&["import", "subscriptions", &csv, "--application", "quakes", "--class", "nearby"]);

    let mut people = Vec::new();
    let exported = platform.run(&["export", "subscriptions"]);
    for line in exported.lines() {
        let line: Value = serde_json::from_str(line).expect("NDJSON");
        let value = |name: &str| line["values"][name].as_f64().expect("a number");
        people.push(Person {
            name: line["subscriber"].as_str().expect("a subscriber").to_owned(),
            latitude: value("latitude"),
            longitude: value("longitude"),
            distance_km: value("distance_km"),
            magnitude_min: value("magnitude_min"),
        });
    }
    assert_eq!(people.len(), 6);
    let expected = expected(&people);
    assert_eq!(expected.values().sum::<usize>(), 52);
    play(&platform, &mails, expected).await;
    // German readers get German mails, with German number formats.
    let german = mails.all().into_iter().filter(|mail| mail.to[0].starts_with("jonas"));
    let subjects: Vec<String> = german.map(|mail| mail.header("subject").expect("a subject")).collect();
    assert!(subjects.iter().all(|subject| subject.contains("Erdbeben_der_St=C3=A4rke_")), "{subjects:?}");
    assert!(subjects.iter().any(|subject| subject.contains("rke_5,4,_122_km")), "{subjects:?}");
    let trace = platform.run(&["trace", "jonas"]);
    assert!(trace.contains("delivered"), "{trace}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mail_of_random_people_is_computed_too() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let people: Vec<Person> = (0..1_000)
        .map(|number| Person {
            name: format!("p{number}"),
            latitude: random.f64() * 180.0 - 90.0,
            longitude: random.f64() * 360.0 - 180.0,
            distance_km: 50.0 + random.f64() * 3_000.0,
            magnitude_min: (random.f64() * 60.0).round() / 10.0,
        })
        .collect();
    let expected = expected(&people);
    assert!(expected.len() > 1_000, "{}", expected.len());

    let mails = Mails::start().await;
    let platform = start(&mails).await;
    let (mut subscribers, mut subscriptions) = (String::new(), String::new());
    for Person { name, latitude, longitude, distance_km, magnitude_min } in &people {
        let devices = serde_json::json!({"mail": {"channel": "email", "address": format!("{name}@example.org")}});
        let _ = writeln!(subscribers, "{}", serde_json::json!({ "id": name, "devices": devices }));
        let values = serde_json::json!({"latitude": latitude, "longitude": longitude, "distance_km": distance_km, "magnitude_min": magnitude_min});
        let _ = writeln!(subscriptions, "{}", serde_json::json!({ "subscriber": name, "values": values }));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("a path").to_owned()
    };
    platform.run(&["import", "subscribers", &file("subscribers.ndjson", &subscribers)]);
    let subscriptions = file("subscriptions.ndjson", &subscriptions);
    platform.run(&["import", "subscriptions", &subscriptions, "--application", "quakes", "--class", "nearby"]);
    play(&platform, &mails, expected).await;
}
