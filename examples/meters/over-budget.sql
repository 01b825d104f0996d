-- Consumption of each building, and the meter with the largest reading, which the notification names.
WITH used AS (
    SELECT building, sum(kwh) AS used, count(*) AS meters
    FROM events GROUP BY building
),
largest AS (
    SELECT building, _event, meter, row_number() OVER (PARTITION BY building ORDER BY kwh DESC, _event) AS place
    FROM events
)
SELECT largest._event, budget._subscription, used.used, used.meters, largest.meter AS largest
FROM used
JOIN largest ON largest.building = used.building AND largest.place = 1
JOIN budget ON budget.building = used.building AND budget.kwh < used.used
-- Absent subscribers are excluded.
WHERE NOT EXISTS (
    SELECT 1 FROM away WHERE away.building = used.building AND away._subscriber = budget._subscriber
)
